package httpapi_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"net/http"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/getkin/kin-openapi/routers/legacy"

	"countersign/api"
	"countersign/internal/bundle"
)

// referee holds every exchange against the published document: an answer that
// the document does not describe is a failure, and so is a request that was
// carried out although the document refuses it.
type referee struct {
	document *openapi3.T
	router   routers.Router
	schemas  *bodySchemas
	// passed holds the answers that were found good: most are refusals in the
	// same words.
	passed sync.Map
}

var theReferee = sync.OnceValues(func() (*referee, error) {
	document, err := openapi3.NewLoader().LoadFromData(api.YAML)
	if err != nil {
		return nil, err
	}
	// The router matches whole addresses, and tests listen on any port.
	document.Servers = nil
	router, err := legacy.NewRouter(document)
	if err != nil {
		return nil, err
	}
	openapi3filter.RegisterBodyDecoder("text/html", openapi3filter.PlainBodyDecoder)
	openapi3filter.RegisterBodyDecoder("text/yaml", openapi3filter.RegisteredBodyDecoder("application/yaml"))
	schemas, err := newBodySchemas(document)
	if err != nil {
		return nil, err
	}
	return &referee{document: document, router: router, schemas: schemas}, nil
})

var exchanges atomic.Int64

// judge checks one exchange. It may run on any goroutine.
func (r *referee) judge(t *testing.T, request *http.Request, sent []byte, got *answer) {
	t.Helper()
	exchanges.Add(1)
	r.judgeHeaders(t, request, got)
	if got.status >= http.StatusBadRequest && got.header.Get("Content-Type") == problemType {
		r.judgeProblem(t, got)
	}
	route, parameters, err := r.router.FindRoute(request)
	// The router forgives slashes, and takes GET /v1/policies/check for a version.
	literal := r.document.Paths.Value(request.URL.Path)
	if err != nil || strings.Count(route.Path, "/") != strings.Count(request.URL.EscapedPath(), "/") ||
		literal != nil && literal.GetOperation(request.Method) == nil {
		r.judgeUndescribed(t, request, got)
		return
	}
	copied := request.Clone(t.Context())
	copied.Body = io.NopCloser(bytes.NewReader(sent))
	copied.ContentLength = int64(len(sent))
	input := &openapi3filter.RequestValidationInput{
		Request: copied, PathParams: parameters, Route: route,
		Options: &openapi3filter.Options{
			AuthenticationFunc: openapi3filter.NoopAuthenticationFunc, IncludeResponseStatus: true,
			RejectWhenRequestBodyNotSpecified: true, SkipSettingDefaults: true,
		},
	}
	if got.status < http.StatusBadRequest {
		judged, err := r.schemas.judgeRequest(route, request, sent)
		if err == nil {
			input.Options.ExcludeRequestBody = judged
			err = openapi3filter.ValidateRequest(t.Context(), input)
		}
		if err != nil {
			t.Errorf("%s %s was carried out, but the document refuses it: %v", request.Method, route.Path, err)
		}
	}
	result := &openapi3filter.ResponseValidationInput{
		RequestValidationInput: input, Status: got.status, Header: got.header, Options: input.Options,
	}
	result.SetBodyBytes(got.body)
	seen := request.Method + route.Path + strconv.Itoa(got.status) + got.header.Get("Content-Type") + got.anonymous()
	if _, known := r.passed.Load(seen); known {
		return
	}
	judged, err := r.schemas.judgeAnswer(route, request.Method, got)
	if err != nil {
		t.Errorf("%s %s answered %d outside the document: %v\n%s", request.Method, route.Path, got.status, err, got.body)
		return
	}
	headers := *input.Options
	headers.ExcludeResponseBody = judged
	result.Options = &headers
	if err := openapi3filter.ValidateResponse(t.Context(), result); err != nil {
		t.Errorf("%s %s answered %d outside the document: %v\n%s", request.Method, route.Path, got.status, err, got.body)
		return
	}
	if got.status != http.StatusTooManyRequests && got.status != http.StatusServiceUnavailable { // whose headers tell times
		r.passed.Store(seen, true)
	}
}

// judgeUndescribed knows what may be answered beside the document: that there is
// nothing, or not by this method, or a file of the documentation page.
func (r *referee) judgeUndescribed(t *testing.T, request *http.Request, got *answer) {
	t.Helper()
	switch got.status {
	case http.StatusNotFound, http.StatusMethodNotAllowed:
		if strings.HasPrefix(got.header.Get("Content-Type"), "text/html") && secretPaths.MatchString(request.URL.EscapedPath()) {
			return // the page that says so
		}
		var document any
		if err := json.Unmarshal(got.body, &document); err != nil || got.header.Get("Content-Type") != problemType {
			t.Errorf("%s answered %d without a problem: %s", request.Method, got.status, got.body)
			return
		}
		schema := r.document.Components.Schemas["Problem"].Value
		if err := schema.VisitJSON(document, openapi3.EnableJSONSchema2020(), openapi3.VisitAsResponse()); err != nil {
			t.Errorf("problem outside the document: %v\n%s", err, got.body)
		}
	case http.StatusOK, http.StatusTooManyRequests:
		if !strings.HasPrefix(request.URL.Path, "/docs/") && !tilePaths.MatchString(request.URL.Path) {
			t.Errorf("%s %s was served and is not described", request.Method, request.URL.Path)
		}
	default:
		t.Errorf("%s on what is not described answered %d: %s", request.Method, got.status, got.body)
	}
}

// tilePaths are those of tiles, whose numbers may have slashes in them.
var tilePaths = regexp.MustCompile("^/public/log/[0-9a-f]{32}/tile/")

const problemType = "application/problem+json"

func (r *referee) judgeProblem(t *testing.T, got *answer) {
	t.Helper()
	shown := got.problem
	if shown.Status != got.status || shown.Type != "/docs#"+shown.Code || shown.RequestID != got.header.Get("X-Request-Id") {
		t.Errorf("problem disagrees with its answer of status %d, request %s: %s", got.status, got.header.Get("X-Request-Id"), got.body)
	}
	if want := r.statusOf(shown.Code); want != got.status {
		t.Errorf("code %s came with status %d, the document says %d", shown.Code, got.status, want)
	}
}

func (r *referee) statusOf(code string) int {
	entries, _ := r.document.Extensions["x-error-codes"].([]any)
	for _, entry := range entries {
		members, _ := entry.(map[string]any)
		if members["code"] == code {
			encoded, _ := json.Marshal(members["status"])
			status, _ := strconv.Atoi(string(encoded))
			return status
		}
	}
	return 0
}

// The headers that every answer may have, and those that some must have and no
// other may.
var (
	commonHeaders = []string{"Content-Type", "Content-Length", "Date", "X-Request-Id", "X-Content-Type-Options", "Cache-Control", "Connection"}
	boundHeaders  = map[string]func(*http.Request, *answer) bool{
		"Location": func(r *http.Request, a *answer) bool {
			return a.status == http.StatusCreated && r.URL.Path == "/v1/chains"
		},
		"Www-Authenticate": func(_ *http.Request, a *answer) bool { return a.status == http.StatusUnauthorized },
		"Allow":            func(_ *http.Request, a *answer) bool { return a.status == http.StatusMethodNotAllowed },
		"Retry-After": func(r *http.Request, a *answer) bool {
			return a.status == http.StatusTooManyRequests || a.status == http.StatusServiceUnavailable && r.URL.Path != "/readyz"
		},
		"Content-Security-Policy": func(r *http.Request, a *answer) bool {
			return a.status == http.StatusOK && strings.HasPrefix(r.URL.Path, api.DocsPath) ||
				strings.HasPrefix(a.header.Get("Content-Type"), "text/html")
		},
		"Referrer-Policy": func(r *http.Request, _ *answer) bool {
			return secretPaths.MatchString(r.URL.EscapedPath()) && isClean(r)
		},
		"X-Robots-Tag": func(r *http.Request, _ *answer) bool {
			return secretPaths.MatchString(r.URL.EscapedPath()) && isClean(r)
		},
		"Content-Disposition": func(_ *http.Request, a *answer) bool { return a.header.Get("Content-Type") == bundle.MediaType },
		"Deprecation":         isLegacy,
		"Link":                isLegacy,
	}
)

// Whoever knows such an address can read what it shows.
var (
	secretPaths = regexp.MustCompile(`^/public/shares/[^/]+$|^/public/log/[^/]+/(checkpoint$|tile/.+/.)|^/public/v2/verify/[^/]+(/compare)?$|^/public/approvals/[^/]+$|^/v1/(receipts|approvals)/[^/]+/verify$`)
	legacyPaths = regexp.MustCompile(`^/public/approvals/[^/]+$|^/v1/approvals/[^/]+/verify$`)
)

func isClean(r *http.Request) bool { return r.URL.Path == path.Clean(r.URL.Path) }

func isLegacy(r *http.Request, a *answer) bool {
	served := a.status != http.StatusMethodNotAllowed && a.status != http.StatusTooManyRequests
	return served && legacyPaths.MatchString(r.URL.EscapedPath()) && isClean(r)
}

func (*referee) judgeHeaders(t *testing.T, request *http.Request, got *answer) {
	t.Helper()
	where := request.Method + " " + request.URL.Path
	for name, belongs := range boundHeaders {
		if given := got.header.Get(name) != ""; given != belongs(request, got) {
			t.Errorf("%s answered %d with %s: %t", where, got.status, name, given)
		}
	}
	for name := range maps.Keys(got.header) {
		if _, bound := boundHeaders[name]; !bound && !slices.Contains(commonHeaders, name) {
			t.Errorf("%s answered with the header %s, which nobody described", where, name)
		}
	}
	if got.header.Get("X-Content-Type-Options") != "nosniff" || got.header.Get("X-Request-Id") == "" {
		t.Errorf("%s answered without nosniff or a request id: %v", where, got.header)
	}
	cache, public := got.header.Get("Cache-Control"), slices.ContainsFunc([]string{"/docs", "/openapi", "/public/log/", "/.well-known/countersign/log-keys", "/verify"}, func(prefix string) bool {
		return strings.HasPrefix(request.URL.Path, prefix)
	})
	if cached := public && got.status == http.StatusOK; (cache == "no-store") == cached {
		t.Errorf("%s answered %d with Cache-Control: %s", where, got.status, cache)
	}
}

func (s *stack) referee(t *testing.T) *referee {
	t.Helper()
	r, err := theReferee()
	if err != nil {
		t.Fatal(errors.Join(errors.New("the API document cannot be used"), err))
	}
	return r
}
