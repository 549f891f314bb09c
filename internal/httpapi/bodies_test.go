package httpapi_test

import (
	"bytes"
	"cmp"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/routers"
	"github.com/santhosh-tekuri/jsonschema/v6"
)

// bodySchemas holds the bodies of requests and answers against the document. It compiles
// each schema once: the library that judges the rest compiles it anew for each body,
// which costs more than the tests.
type bodySchemas struct {
	mu       sync.Mutex // guards both
	compiler *jsonschema.Compiler
	compiled map[string]*jsonschema.Schema // by their places in the document
}

const documentName = "openapi.json"

func newBodySchemas(document *openapi3.T) (*bodySchemas, error) {
	text, err := document.MarshalJSON()
	if err != nil {
		return nil, err
	}
	parsed, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		return nil, err
	}
	compiler := jsonschema.NewCompiler()
	compiler.DefaultDraft(jsonschema.Draft2020)
	compiler.AssertFormat()
	if err := compiler.AddResource(documentName, parsed); err != nil {
		return nil, err
	}
	return &bodySchemas{compiler: compiler, compiled: make(map[string]*jsonschema.Schema)}, nil
}

// judgeAnswer validates a JSON body. It reports false where the document has no JSON
// schema for the answer: then the library judges it.
func (b *bodySchemas) judgeAnswer(route *routers.Route, method string, got *answer) (judged bool, err error) {
	response := route.Operation.Responses.Status(got.status)
	if response == nil || response.Value == nil {
		return false, nil
	}
	place := cmp.Or(response.Ref, operationPlace(route, method)+"/responses/"+strconv.Itoa(got.status))
	return b.judge(place, response.Value.Content, got.header, got.body)
}

// judgeJSON judges the body of a request that was not sent.
func (r *referee) judgeJSON(t *testing.T, method, path, body string) (judged bool, err error) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), method, path, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/json")
	route, _, err := r.router.FindRoute(request)
	if err != nil {
		t.Fatal(err)
	}
	return r.schemas.judgeRequest(route, request, []byte(body))
}

// judgeRequest is judgeAnswer for what was sent.
func (b *bodySchemas) judgeRequest(route *routers.Route, request *http.Request, sent []byte) (judged bool, err error) {
	body := route.Operation.RequestBody
	if body == nil || body.Value == nil || len(sent) == 0 {
		return false, nil
	}
	return b.judge(cmp.Or(body.Ref, operationPlace(route, request.Method)+"/requestBody"), body.Value.Content, request.Header, sent)
}

// judge validates a body by the schema at a place of the document.
func (b *bodySchemas) judge(place string, content openapi3.Content, header http.Header, body []byte) (judged bool, err error) {
	kind, _, _ := strings.Cut(header.Get("Content-Type"), ";")
	media := content[kind]
	if (kind != "application/json" && kind != problemType) || media == nil || media.Schema == nil {
		return false, nil
	}
	schema, err := b.schema(place + "/content/" + escapePointer.Replace(kind) + "/schema")
	if err != nil {
		return true, err
	}
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(body))
	if err != nil {
		return true, fmt.Errorf("the body is no JSON: %w", err)
	}
	return true, schema.Validate(value)
}

var escapePointer = strings.NewReplacer("~", "~0", "/", "~1", "{", "%7B", "}", "%7D")

// operationPlace is where the document has an operation, as a fragment.
func operationPlace(route *routers.Route, method string) string {
	return "#/paths/" + escapePointer.Replace(route.Path) + "/" + strings.ToLower(method)
}

func (b *bodySchemas) schema(place string) (*jsonschema.Schema, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if schema := b.compiled[place]; schema != nil {
		return schema, nil
	}
	schema, err := b.compiler.Compile(documentName + place)
	if err != nil {
		return nil, fmt.Errorf("compile %s: %w", place, err)
	}
	b.compiled[place] = schema
	return schema, nil
}

// The referee's own schemas find a body that the document does not describe, in a
// response of a route and in one that routes share.
func TestAnswersOutsideTheDocumentAreFound(t *testing.T) {
	t.Parallel()
	r, err := theReferee()
	if err != nil {
		t.Fatal(err)
	}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "/v1/kill-switch", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	route, _, err := r.router.FindRoute(request)
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		status int
		kind   string
		body   string
		good   bool
	}{
		{http.StatusOK, "application/json", `{"active":false,"reason":null,"changed_at":null,"changed_by":null}`, true},
		{http.StatusOK, "application/json", `{"active":"no","reason":null,"changed_at":null,"changed_by":null}`, false},
		{http.StatusOK, "application/json", `{}`, false},
		{http.StatusOK, "application/json", `{`, false},
		{http.StatusUnauthorized, problemType, `{}`, false},
	} {
		got := &answer{status: test.status, header: http.Header{"Content-Type": {test.kind}}, body: []byte(test.body)}
		judged, err := r.schemas.judgeAnswer(route, request.Method, got)
		if !judged || (err == nil) != test.good {
			t.Errorf("%d %s: judged %t, %v", test.status, test.body, judged, err)
		}
	}
}

// The referee's own schemas find a request that the document does not describe.
func TestRequestsOutsideTheDocumentAreFound(t *testing.T) {
	t.Parallel()
	r, err := theReferee()
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		body string
		good bool
	}{
		{`{"reason":"drill"}`, true},
		{`{"reason":5}`, false},
		{`[]`, false},
		{`{`, false},
	} {
		if judged, err := r.judgeJSON(t, http.MethodPost, "/v1/kill-switch/activate", test.body); !judged || (err == nil) != test.good {
			t.Errorf("%s: judged %t, %v", test.body, judged, err)
		}
	}
}
