package main

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"

	"countersign/internal/ledger"
)

type keysSignInCommand struct {
	storage
	organizationFlag
	KeyID string `arg:"" optional:"" name:"key_id" help:"The id of the key to sign in as, as keys list shows it; the default is the oldest active admin's."`
	URL   string `name:"url" help:"Where the server is reached, for the link; without it the server's own --public-url or --listen says so." env:"COUNTERSIGN_URL"`
	// The server's own settings, by the same names.
	PublicURL string `name:"public-url" help:"The server's --public-url." placeholder:"URL"`
	Listen    string `help:"The server's --listen." default:"127.0.0.1:8080"`
	TLSCert   string `name:"tls-cert" help:"The server's --tls-cert: the link is one of https." type:"path" placeholder:"FILE"`
	JSON      bool   `name:"json" help:"Print JSON." env:"-"`
}

// Run prints the link alone on standard output.
func (c *keysSignInCommand) Run(p *process) (err error) {
	var id ledger.KeyID
	if c.KeyID != "" {
		if id, err = (&keyArgument{c.KeyID}).parse(); err != nil {
			return err
		}
	}
	base, err := c.address()
	if err != nil {
		return misused(err)
	}
	o, err := c.openAdministration(p.ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, o.close()) }()
	keys, err := o.operator().Keys(p.ctx, c.Org)
	if err != nil {
		return namesNothing(err)
	}
	key := signInKey(keys, id, o.service.Now())
	if key == nil {
		return unclear(errors.New("there is no active key to sign in as; " + listKeys(c.Org) + " shows those there are"))
	}
	link, err := o.operator().SignInLink(p.ctx, c.Org, key.ID)
	if err != nil {
		return err
	}
	return c.print(p, key, signInLink(base, link))
}

// signInKey is the active key of that id; with the zero id, the oldest admin's.
func signInKey(keys []*ledger.KeyRecord, id ledger.KeyID, now ledger.Time) *ledger.KeyRecord {
	for _, key := range keys {
		if key.Active(now) && (key.ID == id || (id == ledger.KeyID{} && key.Role == ledger.RoleAdmin)) {
			return key
		}
	}
	return nil
}

func (c *keysSignInCommand) print(p *process, key *ledger.KeyRecord, link string) error {
	if c.JSON {
		return p.printJSON(struct {
			Link  string `json:"link"`
			KeyID string `json:"key_id"`
			Name  string `json:"name"`
			Role  string `json:"role"`
		}{link, key.ID.String(), key.Name, string(key.Role)})
	}
	p.say("This link signs in as %s (%s). It works once, within half an hour:", visible(cmp.Or(key.Name, key.Hint)), key.Role)
	fmt.Fprintln(p.out, link)
	return nil
}

// address is where the server is reached: what was said about it, or else where it
// listens.
func (c *keysSignInCommand) address() (string, error) {
	switch {
	case c.URL != "":
		return parseBase("--url", c.URL)
	case c.PublicURL != "":
		return parseBase("--public-url", c.PublicURL)
	}
	if err := checkListen("--listen", c.Listen); err != nil {
		return "", err
	}
	if _, port, _ := net.SplitHostPort(c.Listen); port == "0" {
		return "", errors.New("--listen leaves the port open: say with --url where the server is reached")
	}
	if c.TLSCert != "" {
		return reachable("https", c.Listen), nil
	}
	return reachable("http", c.Listen), nil
}

// parseBase reads the address of a server, and returns it without a slash at its
// end.
func parseBase(flag, text string) (string, error) {
	base, err := url.Parse(text)
	if err != nil || base.Host == "" || (base.Scheme != "http" && base.Scheme != "https") || base.User != nil || base.RawQuery != "" || base.Fragment != "" {
		return "", fmt.Errorf("%s must have the form https://host", flag)
	}
	return strings.TrimRight(text, "/"), nil
}

// signInLink carries the secret in the fragment, which browsers send to nobody.
func signInLink(base string, secret ledger.Secret) string {
	return base + "/sign-in#" + secret.Reveal()
}
