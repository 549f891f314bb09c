package operate

import (
	"cmp"
	"errors"
	"fmt"
	"net"

	"countersign/internal/cli"
	"countersign/internal/ledger"
)

type keysSignInCommand struct {
	cli.Storage
	organizationFlag
	KeyID string `arg:"" optional:"" name:"key_id" help:"The id of the key to sign in as, as keys list shows it; the default is the oldest active admin's."`
	URL   string `name:"url" help:"URL of the server for the link; the default comes from the server's --public-url or --listen, or from the data folder." env:"COUNTERSIGN_URL"`
	// The server's own settings, under the same names.
	PublicURL string `name:"public-url" help:"The server's --public-url." placeholder:"URL"`
	Listen    string `help:"The server's --listen." placeholder:"ADDR"`
	TLSCert   string `name:"tls-cert" help:"The server's --tls-cert: the link uses https." type:"path" placeholder:"FILE"`
	JSON      bool   `name:"json" help:"Print JSON." env:"-"`
}

// Run prints the link alone on standard output.
func (c *keysSignInCommand) Run(p *cli.Process) (err error) {
	var id ledger.KeyID
	if c.KeyID != "" {
		if id, err = (&keyArgument{c.KeyID}).parse(); err != nil {
			return err
		}
	}
	base, known, err := c.address()
	if err != nil {
		return cli.Usage(err)
	}
	o, err := c.OpenForChanges(p)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, o.Close()) }()
	keys, err := o.Operator().Keys(p.Ctx, c.Org)
	if err != nil {
		return namesNothing(err)
	}
	key := signInKey(keys, id, o.Service.Now())
	if key == nil {
		return cli.Inconclusive(errors.New("there is no active key to sign in as; " + listKeys(c.Org) + " lists the existing ones"))
	}
	link, err := o.Operator().SignInLink(p.Ctx, c.Org, key.ID)
	if err != nil {
		return err
	}
	if !known {
		p.Notef("The server's address is not known here, so the link has the default address. Name the right one with --url.")
	}
	return c.print(p, key, cli.SignInLink(base, link))
}

// signInKey returns the active key with the id, or the oldest active admin key for the zero id.
func signInKey(keys []*ledger.KeyRecord, id ledger.KeyID, now ledger.Time) *ledger.KeyRecord {
	for _, key := range keys {
		if key.Active(now) && (key.ID == id || (id == ledger.KeyID{} && key.Role == ledger.RoleAdmin)) {
			return key
		}
	}
	return nil
}

func (c *keysSignInCommand) print(p *cli.Process, key *ledger.KeyRecord, link string) error {
	if c.JSON {
		return p.PrintJSON(struct {
			Link  string `json:"link"`
			KeyID string `json:"key_id"`
			Name  string `json:"name"`
			Role  string `json:"role"`
		}{link, key.ID.String(), key.Name, string(key.Role)})
	}
	p.Notef("This link signs in as %s (%s). It works once, within half an hour:", cli.OneLine(cmp.Or(key.Name, key.Hint)), key.Role)
	fmt.Fprintln(p.Out, link)
	return nil
}

// address returns the server's URL: from the flags, or else the address that the server noted in
// the data folder. If neither is known, it is the default.
func (c *keysSignInCommand) address() (base string, known bool, err error) {
	switch {
	case c.URL != "":
		base, err = cli.ParseBaseURL("--url", c.URL)
		return base, true, err
	case c.PublicURL != "":
		base, err = cli.ParseBaseURL("--public-url", c.PublicURL)
		return base, true, err
	}
	if c.Listen != "" {
		if err := cli.CheckListen("--listen", c.Listen); err != nil {
			return "", false, err
		}
		if _, port, _ := net.SplitHostPort(c.Listen); port != "0" {
			return cli.ReachableURL(c.scheme(), c.Listen), true, nil
		}
	}
	if noted := c.NotedAddress(); noted != "" {
		return noted, true, nil
	}
	if c.Listen != "" {
		return "", false, errors.New("--listen does not name the port: give the server's URL with --url")
	}
	return cli.ReachableURL(c.scheme(), cli.DefaultListen), false, nil
}

func (c *keysSignInCommand) scheme() string {
	if c.TLSCert != "" {
		return "https"
	}
	return "http"
}
