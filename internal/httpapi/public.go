package httpapi

import (
	"bytes"
	"crypto/sha256"
	_ "embed" // the page and its style are part of the program
	"encoding/base64"
	"errors"
	"html/template"
	"mime"
	"net/http"
	"strconv"
	"strings"
	"time"

	"countersign/internal/ledger"
)

const (
	publicPath    = "/public/v2/verify/"
	publicPattern = publicPath + "{opaque_token}"
)

// secretPath reports whether a route's path, once filled in, is all that it takes
// to read what it shows: such an address must not travel on from a browser, nor
// end in an index.
func secretPath(pattern string) bool {
	return strings.HasPrefix(pattern, "/public/") || strings.HasSuffix(pattern, "/verify")
}

// errNothingToShow is the one text for whatever is wrong with such a path: there is
// no key to speak of, and nobody learns whether there ever was something here.
var errNothingToShow = ledger.Errorf(ledger.CodeNotFound, "there is nothing to show under this address: the link or the id is wrong, incomplete or no longer valid; ask whoever gave it to you for a new one")

func verifyToken(x *exchange) error {
	return x.public(x.api.service.VerifyToken(x.r.Context(), x.r.PathValue("opaque_token")))
}

// Links by an approval's own id still work. RFC 9745 has them say since when they
// should not be made any more, and RFC 5829 what takes their place.
var (
	deprecation = "@" + strconv.FormatInt(time.Date(2026, time.November, 15, 0, 0, 0, 0, time.UTC).Unix(), 10)
	successor   = `</docs#verifyPublicToken>; rel="successor-version"`
)

func verifyLegacy(x *exchange) error {
	x.w.Header().Set("Deprecation", deprecation)
	x.w.Header().Set("Link", successor)
	if x.api.legacy != nil {
		x.api.legacy.LegacyRequest(x.route.Pattern)
	}
	id, err := x.approvalID()
	if err != nil {
		return x.public(nil, err)
	}
	return x.public(x.api.service.VerifyApprovalPublicly(x.r.Context(), id))
}

// public answers the minimized result, or that there is none: in one and the same
// way, whatever is wrong with a link. People get a page.
func (x *exchange) public(v *ledger.PublicVerification, err error) error {
	page := wantsPage(x.r.Header.Get("Accept"))
	var own *ledger.Error
	switch {
	case page && errors.As(err, &own) && own.Code == ledger.CodeNotFound:
		return x.page(http.StatusNotFound, nil)
	case err != nil:
		return err
	case page:
		return x.page(http.StatusOK, v)
	}
	return x.answer(http.StatusOK, appendPublic(nil, v))
}

// wantsPage reports whether an Accept header asks for HTML rather than for JSON.
// Programs that take anything get JSON.
func wantsPage(accept string) bool {
	return quality(accept, "text/html") > quality(accept, "application/json")
}

func quality(accept, media string) float64 {
	best := 0.0
	for part := range strings.SplitSeq(accept, ",") {
		kind, parameters, err := mime.ParseMediaType(part)
		if err != nil || kind != media {
			continue
		}
		q := 1.0
		if given, ok := parameters["q"]; ok {
			if q, err = strconv.ParseFloat(given, 64); err != nil {
				continue
			}
		}
		best = max(best, q)
	}
	return best
}

var (
	//go:embed pages/public.html
	publicHTML string
	//go:embed pages/public.css
	publicCSS string

	publicPage = template.Must(template.New("public").Funcs(template.FuncMap{"words": inWords}).Parse(publicHTML))
	// publicPolicy lets a browser apply the page's own style and do nothing else.
	publicPolicy = "default-src 'none'; style-src 'sha256-" + styleHash(publicCSS) + "'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)

func styleHash(css string) string {
	sum := sha256.Sum256([]byte(css))
	return base64.StdEncoding.EncodeToString(sum[:])
}

// inWords writes a status as people would: its words are the service's own.
func inWords(status any) string {
	switch s := status.(type) {
	case ledger.Standing:
		return strings.ReplaceAll(string(s), "_", " ")
	case ledger.KeyStanding:
		return strings.ReplaceAll(string(s), "_", " ")
	case ledger.AnchorStanding:
		return strings.ReplaceAll(string(s), "_", " ")
	}
	return ""
}

// page writes the result for people; nil stands for a link that shows nothing.
func (x *exchange) page(status int, v *ledger.PublicVerification) error {
	var body bytes.Buffer
	if err := publicPage.Execute(&body, struct {
		Style  template.CSS
		Result *ledger.PublicVerification
	}{template.CSS(publicCSS), v}); err != nil { //nolint:gosec // the style is embedded
		return err
	}
	x.w.Header().Set("Content-Security-Policy", publicPolicy)
	x.write(status, "text/html; charset=utf-8", body.Bytes())
	return nil
}
