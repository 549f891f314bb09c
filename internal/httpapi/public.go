package httpapi

import (
	"bytes"
	"crypto/sha256"
	_ "embed" // for the page, its style and its script
	"encoding/base64"
	"html/template"
	"mime"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"countersign/api"
	"countersign/internal/canon"
	"countersign/internal/fault"
	"countersign/internal/ledger"
	"countersign/internal/problem"
	"countersign/internal/service"
)

const (
	publicPath    = "/public/v2/verify/"
	publicPattern = publicPath + "{opaque_token}"
)

// secretPath reports whether anyone who knows a path of the route can read what it shows. Such a path
// must not appear in a Referer header or in a search index.
func secretPath(pattern string) bool {
	return strings.HasPrefix(pattern, "/public/") || strings.HasSuffix(pattern, "/verify") && pattern != verifyPath
}

// errNothingToShow is the error for everything that can be wrong with a secret path. It does not
// reveal whether anything ever existed there.
var errNothingToShow = fault.Errorf(fault.CodeNotFound, "there is nothing to show at this address: the link or the id is wrong, incomplete or no longer valid; ask the person who gave it to you for a new one")

func verifyToken(x *exchange) error {
	token := x.r.PathValue("opaque_token")
	v, err := x.api.service.VerifyToken(x.r.Context(), token)
	if err != nil {
		return err
	}
	return x.public(v, comparison{Offered: true})
}

// maxComparison is the maximum size of the body of a comparison, in bytes.
const maxComparison = 4 << 10

// comparison is the form on a public page, with its result. The form is posted to the address of the
// page itself, so that the page need not contain the token.
type comparison struct {
	Offered bool   // the page has the form
	Given   string // the hash as it was entered
	Fault   string // what is wrong with the hash
	// Answered says that the form was sent with a valid hash. Matches is then the result.
	Answered, Matches bool
}

// compareToken reports whether the link is about the copy with the given hash. The body is validated
// before the token is looked up, so that an invalid body reveals nothing about the token.
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
	return compareHash(x, token, hash)
}

// compareHash answers a program.
func compareHash(x *exchange, token string, hash [32]byte) error {
	matches, err := x.api.service.CompareToken(x.r.Context(), token, hash)
	if err != nil {
		return err
	}
	w := canon.BeginObject(nil)
	w.Bool("matches", matches)
	return x.answer(http.StatusOK, w.End())
}

// compareForm is compareToken for forms. A browser gets the page. Any other client gets what JSON
// gets: the JSON form of the page is the verdict on the link, which would read as a match.
func (x *exchange) compareForm(token, data string) error {
	sent, err := url.ParseQuery(data)
	if err != nil {
		return fault.Invalid(fault.FieldError{Detail: "the form cannot be read"})
	}
	c := comparison{Offered: true, Given: strings.TrimSpace(sent.Get("hash"))}
	hash, ok := ledger.ParseHash(c.Given)
	switch page := wantsPage(x.r.Header.Get("Accept")); {
	case !page && !ok:
		return fault.Invalid(fault.FieldError{Pointer: "/hash", Detail: "must be sha256: and 64 hexadecimal digits in lower case"})
	case !page:
		return compareHash(x, token, hash)
	case ok:
		matches, err := x.api.service.CompareToken(x.r.Context(), token, hash)
		if err != nil {
			return err
		}
		c.Answered, c.Matches = true, matches
	default:
		c.Fault = "This is not a SHA-256 hash. A hash is “sha256:” followed by 64 characters: digits and the letters a to f."
	}
	v, err := x.api.service.VerifyToken(x.r.Context(), token)
	if err != nil {
		return err
	}
	return x.page(http.StatusOK, v, c, failure{})
}

// Links with an approval's id still work. Their answers carry the date of their deprecation (RFC 9745)
// and name their successor (RFC 5829).
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
		return err
	}
	v, err := x.api.service.VerifyApprovalPublicly(x.r.Context(), x.route.Pattern, id)
	if err != nil {
		return err
	}
	return x.public(v, comparison{})
}

// public answers with the minimized result, as a page for browsers.
func (x *exchange) public(v *ledger.PublicVerification, c comparison) error {
	if wantsPage(x.r.Header.Get("Accept")) {
		return x.page(http.StatusOK, v, c, failure{})
	}
	return x.answer(http.StatusOK, appendPublic(nil, v))
}

// failure is what a page says in place of a result. It is empty for a link without one.
type failure struct{ Title, Message, RequestID string }

// failsWithPage reports whether an error is answered with a page: to a browser, on a route that has
// pages, for what a person there can meet.
func (x *exchange) failsWithPage(status int) bool {
	switch x.route.Pattern {
	case publicPattern, publicPattern + "/compare", sharePattern, "/public/approvals/{approval_id}", "/v1/approvals/{approval_id}/verify",
		verifyPath, api.DocsPath, GuidesPath, GuidesPath + "/{name...}":
	default:
		return false
	}
	return (status == http.StatusNotFound || status == http.StatusTooManyRequests || status >= http.StatusInternalServerError) &&
		wantsPage(x.r.Header.Get("Accept"))
}

// failurePage answers with an error as a page.
func (x *exchange) failurePage(shown *fault.Error, kind problem.Kind) error {
	if shown == errNothingToShow {
		return x.page(kind.Status, nil, comparison{}, failure{})
	}
	message := strings.ToUpper(shown.Message[:1]) + shown.Message[1:] + "."
	return x.page(kind.Status, nil, comparison{}, failure{kind.Title, message, x.id})
}

// wantsPage reports whether an Accept header prefers HTML to JSON. Programs that accept anything get
// JSON.
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

	// publicScript hashes a copy in the browser. It includes the bundle verifier.
	publicScript = bundleScript + publicJS
	publicPage   = template.Must(template.New("public").Funcs(template.FuncMap{"words": inWords}).Parse(publicHTML))
	// publicPolicy allows only the page's own style and posting its form to this server.
	publicPolicy = "default-src 'none'; style-src 'sha256-" + sourceHash(publicCSS) + "'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
	// comparePolicy also allows the page's own script, which sends requests to this server.
	comparePolicy = publicPolicy + "; script-src 'sha256-" + sourceHash(publicScript) + "'; connect-src 'self'"
)

// sourceHash returns the hash that allows an inline style or script in a Content-Security-Policy.
func sourceHash(source string) string {
	sum := sha256.Sum256([]byte(source))
	return base64.StdEncoding.EncodeToString(sum[:])
}

// inWords formats a status for people.
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

// page answers with the result as a page, or with a failure if v is nil.
func (x *exchange) page(status int, v *ledger.PublicVerification, c comparison, f failure) error {
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
		Failure failure
	}{template.CSS(publicCSS), template.JS(script), v, c, f}); err != nil { //nolint:gosec // both are constants of the program
		return err
	}
	x.w.Header().Set("Content-Security-Policy", policy)
	x.write(status, "text/html; charset=utf-8", body.Bytes())
	return nil
}
