package httpapi_test

import (
	"bytes"
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

// answerSchemas holds the bodies of answers against the document. It compiles each
// schema once: the library that judges the rest compiles it anew for each answer, which
// costs more than the tests.
type answerSchemas struct {
	mu       sync.Mutex // guards both
	compiler *jsonschema.Compiler
	compiled map[string]*jsonschema.Schema // by their places in the document
}

const documentName = "openapi.json"

func newAnswerSchemas(document *openapi3.T) (*answerSchemas, error) {
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
	return &answerSchemas{compiler: compiler, compiled: make(map[string]*jsonschema.Schema)}, nil
}

// judge validates a JSON body. It reports false where the document has no JSON schema
// for the answer: then the library judges it.
func (b *answerSchemas) judge(route *routers.Route, method string, got *answer) (judged bool, err error) {
	kind, _, _ := strings.Cut(got.header.Get("Content-Type"), ";")
	place := placeOf(route, method, got.status, kind)
	if place == "" {
		return false, nil
	}
	schema, err := b.schema(place)
	if err != nil {
		return true, err
	}
	body, err := jsonschema.UnmarshalJSON(bytes.NewReader(got.body))
	if err != nil {
		return true, fmt.Errorf("the body is no JSON: %w", err)
	}
	return true, schema.Validate(body)
}

func (b *answerSchemas) schema(place string) (*jsonschema.Schema, error) {
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

// placeOf is where the document has the schema of an answer, as a fragment; "" where it
// has none.
func placeOf(route *routers.Route, method string, status int, kind string) string {
	if kind != "application/json" && kind != problemType {
		return ""
	}
	response := route.Operation.Responses.Status(status)
	if response == nil || response.Value == nil {
		return ""
	}
	media := response.Value.Content[kind]
	if media == nil || media.Schema == nil {
		return ""
	}
	escape := strings.NewReplacer("~", "~0", "/", "~1")
	place := response.Ref
	if place == "" {
		place = "#/paths/" + escape.Replace(route.Path) + "/" + strings.ToLower(method) + "/responses/" + strconv.Itoa(status)
	}
	if strings.ContainsAny(place, "{}") {
		place = strings.NewReplacer("{", "%7B", "}", "%7D").Replace(place)
	}
	return place + "/content/" + escape.Replace(kind) + "/schema"
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
		judged, err := r.schemas.judge(route, request.Method, got)
		if !judged || (err == nil) != test.good {
			t.Errorf("%d %s: judged %t, %v", test.status, test.body, judged, err)
		}
	}
}
