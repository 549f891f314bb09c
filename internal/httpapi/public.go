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
	"net/url"
	"strconv"
	"strings"
	"time"

	"countersign/internal/canon"
	"countersign/internal/fault"
	"countersign/internal/ledger"
	"countersign/internal/service"
)

const (
	publicPath    = "/public/v2/verify/"
	publicPattern = publicPath + "{opaque_token}"
)

// secretPath reports whether a route's path, once filled in, is all that it takes
// to read what it shows: such an address must not travel on from a browser, nor
// end in an index.
func secretPath(pattern string) bool {
	return strings.HasPrefix(pattern, "/public/") || strings.HasSuffix(pattern, "/verify") && pattern != verifyPath
}

// errNothingToShow is the one text for whatever is wrong with such a path: there is
// no key to speak of, and nobody learns whether there ever was something here.
var errNothingToShow = fault.Errorf(fault.CodeNotFound, "there is nothing to show under this address: the link or the id is wrong, incomplete or no longer valid; ask whoever gave it to you for a new one")

func verifyToken(x *exchange) error {
	token := x.r.PathValue("opaque_token")
	v, err := x.api.service.VerifyToken(x.r.Context(), token)
	return x.public(v, err, comparison{Offered: true})
}

// maxComparison bounds the body of a comparison, in bytes.
const maxComparison = 4 << 10

// comparison is the form on a public page, and the answer to it. The form is sent to the
// page's own address, so that the page does not name it.
type comparison struct {
	Offered bool   // there is a form
	Given   string // the hash as it was sent
	Fault   string // what is wrong with it
	// Answered says that the form was sent and read; then Matches is the answer.
	Answered, Matches bool
}

// compareToken tells whoever holds a copy whether the link is about it. What is wrong
// with the body is said before the token is looked at: it tells nothing about that.
func compareToken(x *exchange) error {
	token := x.r.PathValue("opaque_token")
	data, err := x.read(maxComparison)
	if err != nil {
		return err
	}
	if mediaType(x.r.Header.Get("Content-Type")) == "application/x-www-form-urlencoded" {
		return x.compareForm(token, string(data))
	}
	if !isJSON(x.r.Header.Get("Content-Type")) {
		return fault.Errorf(fault.CodeUnsupportedMedia, "send the body as Content-Type: application/json")
	}
	body, err := canon.Parse(data)
	if err != nil {
		return unreadable(err)
	}
	hash, err := service.ParseComparison(body)
	if err != nil {
		return err
	}
	matches, err := x.api.service.CompareToken(x.r.Context(), token, hash)
	if err != nil {
		return err
	}
	w := canon.BeginObject(nil)
	w.Bool("matches", matches)
	return x.answer(http.StatusOK, w.End())
}

// compareForm is compareToken for people: the answer stands on the page.
func (x *exchange) compareForm(token, data string) error {
	sent, err := url.ParseQuery(data)
	if err != nil {
		return fault.Invalid(fault.FieldError{Detail: "the form cannot be read"})
	}
	c := comparison{Offered: true, Given: strings.TrimSpace(sent.Get("hash"))}
	if hash, ok := ledger.ParseHash(c.Given); ok {
		matches, err := x.api.service.CompareToken(x.r.Context(), token, hash)
		if err != nil {
			return x.public(nil, err, c)
		}
		c.Answered, c.Matches = true, matches
	} else {
		c.Fault = "This is no hash. One begins with sha256: and has 64 digits and letters from a to f after that."
	}
	v, err := x.api.service.VerifyToken(x.r.Context(), token)
	return x.public(v, err, c)
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
		x.api.service.NoteLegacyUse(x.route.Pattern, ledger.OrgID{})
		return x.public(nil, err, comparison{})
	}
	v, err := x.api.service.VerifyApprovalPublicly(x.r.Context(), x.route.Pattern, id)
	return x.public(v, err, comparison{})
}

// public answers the minimized result, or that there is none: in one and the same
// way, whatever is wrong with a link. People get a page.
func (x *exchange) public(v *ledger.PublicVerification, err error, c comparison) error {
	page := wantsPage(x.r.Header.Get("Accept"))
	var own *fault.Error
	switch {
	case page && errors.As(err, &own) && own.Code == fault.CodeNotFound:
		return x.page(http.StatusNotFound, nil, c)
	case err != nil:
		return err
	case page:
		return x.page(http.StatusOK, v, c)
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

	//go:embed pages/public.js
	publicJS string

	// publicScript hashes a copy in the browser, with the verifier's code.
	publicScript = bundleScript + publicJS
	publicPage   = template.Must(template.New("public").Funcs(template.FuncMap{"words": inWords}).Parse(publicHTML))
	// publicPolicy lets a browser apply the page's own style, send its form back here and
	// do nothing else.
	publicPolicy = "default-src 'none'; style-src 'sha256-" + sourceHash(publicCSS) + "'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
	// comparePolicy also lets it run the page's own script, which asks this server.
	comparePolicy = publicPolicy + "; script-src 'sha256-" + sourceHash(publicScript) + "'; connect-src 'self'"
)

// sourceHash names an inline style or script in a content policy.
func sourceHash(source string) string {
	sum := sha256.Sum256([]byte(source))
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
func (x *exchange) page(status int, v *ledger.PublicVerification, c comparison) error {
	policy, script := publicPolicy, ""
	if v != nil && c.Offered {
		policy, script = comparePolicy, publicScript
	}
	var body bytes.Buffer
	if err := publicPage.Execute(&body, struct {
		Style   template.CSS
		Script  template.JS
		Result  *ledger.PublicVerification
		Compare comparison
	}{template.CSS(publicCSS), template.JS(script), v, c}); err != nil { //nolint:gosec // both are embedded
		return err
	}
	x.w.Header().Set("Content-Security-Policy", policy)
	x.write(status, "text/html; charset=utf-8", body.Bytes())
	return nil
}
