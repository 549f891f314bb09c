package api

import (
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"
)

func load(t *testing.T) *openapi3.T {
	t.Helper()
	document, err := openapi3.NewLoader().LoadFromData(YAML)
	if err != nil {
		t.Fatalf("load the document: %v", err)
	}
	return document
}

func schemaOf(t *testing.T, document *openapi3.T, name string) *openapi3.Schema {
	t.Helper()
	found := document.Components.Schemas[name]
	if found == nil {
		t.Fatalf("no schema %s", name)
	}
	return found.Value
}

// eachOperation names an operation as people do: method and path.
func eachOperation(t *testing.T, visit func(t *testing.T, document *openapi3.T, operation *openapi3.Operation)) {
	t.Helper()
	document := load(t)
	visited := 0
	for path, item := range document.Paths.Map() {
		for method, operation := range item.Operations() {
			visited++
			t.Run(method+" "+path, func(t *testing.T) { visit(t, document, operation) })
		}
	}
	if visited == 0 {
		t.Fatal("the document has no operations")
	}
}

// The API description is a valid OpenAPI 3.1 document.
func TestDocumentIsValid(t *testing.T) {
	t.Parallel()
	document := load(t)
	if !document.IsOpenAPI31OrLater() {
		t.Errorf("version is %s, want 3.1", document.OpenAPI)
	}
	if err := document.Validate(t.Context(), openapi3.EnableSchemaFormatValidation()); err != nil {
		t.Fatal(err)
	}
}

// The JSON form of the API description says the same as the YAML form.
func TestJSONEqualsYAML(t *testing.T) {
	t.Parallel()
	converted, err := JSON()
	if err != nil {
		t.Fatal(err)
	}
	var written, want, got any
	if err := yaml.Unmarshal(YAML, &written); err != nil {
		t.Fatal(err)
	}
	encoded, err := json.Marshal(written)
	if err != nil {
		t.Fatal(err)
	}
	for body, target := range map[*[]byte]*any{&encoded: &want, &converted: &got} {
		if err := json.Unmarshal(*body, target); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("JSON differs from YAML (-yaml +json):\n%s", diff)
	}
}

// The conversion from YAML to JSON keeps the order of members and the types of
// values.
func TestConversionKeepsOrderAndTypes(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, in, want string
	}{
		{"order", "b: 1\na: 2", `{"b":1,"a":2}`},
		{"quoted numbers stay texts", "a: '201'", `{"a":"201"}`},
		{"scalars", "[true, null, 'null', 1.5, <b>&]", `[true,null,"null",1.5,"<b>&"]`},
		{"nesting", "a: {b: [{}, []]}", `{"a":{"b":[{},[]]}}`},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			got, err := toJSON([]byte(test.in))
			if err != nil {
				t.Fatal(err)
			}
			if string(got) != test.want {
				t.Errorf("got %s, want %s", got, test.want)
			}
		})
	}
}

// YAML that has no exact JSON form is not converted.
func TestConversionRefuses(t *testing.T) {
	t.Parallel()
	tests := map[string]string{
		"no YAML":          "a: [",
		"a name twice":     "a: 1\na: 2",
		"an alias":         "a: &x {}\nb: *x",
		"a name of a kind": "? [a]\n: 1",
	}
	for name, in := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got, err := toJSON([]byte(in)); err == nil {
				t.Errorf("got %s, want an error", got)
			}
		})
	}
}

// Every operation has a unique id, a summary and one tag that the document
// describes.
func TestEveryOperationIsDescribed(t *testing.T) {
	t.Parallel()
	ids := make(map[string]bool)
	eachOperation(t, func(t *testing.T, document *openapi3.T, operation *openapi3.Operation) {
		if operation.OperationID == "" || ids[operation.OperationID] {
			t.Errorf("operationId %q is empty or taken", operation.OperationID)
		}
		ids[operation.OperationID] = true
		if operation.Summary == "" {
			t.Error("no summary")
		}
		if len(operation.Tags) != 1 || document.Tags.Get(operation.Tags[0]) == nil {
			t.Errorf("tags are %v, want one that the document describes", operation.Tags)
		}
	})
}

// Every operation names the role that may call it and describes the refusals that
// follow from it.
func TestEveryOperationSaysWhoMayCall(t *testing.T) {
	t.Parallel()
	eachOperation(t, func(t *testing.T, document *openapi3.T, operation *openapi3.Operation) {
		role, _ := operation.Extensions["x-role"].(string)
		if !slices.Contains([]string{"public", "agent", "member", "admin"}, role) {
			t.Fatalf("x-role is %q", role)
		}
		security := operation.Security
		if security == nil {
			security = &document.Security
		}
		if public := len(*security) == 0; public != (role == "public") {
			t.Errorf("role %s with security %v", role, *security)
		}
		// A key that is bound to agents may be refused where one records.
		records := slices.Contains([]string{"recordEvent", "reportEvents", "reportOutcome"}, operation.OperationID)
		// Slack proves itself with a signature instead of a key.
		signed := operation.OperationID == "pressSlackButton"
		refuses := map[int]bool{401: role != "public" || signed, 403: role == "member" || role == "admin" || records}
		for status, want := range refuses {
			if got := operation.Responses.Status(status) != nil; got != want {
				t.Errorf("answer %d described: %t, want %t for role %s", status, got, want, role)
			}
		}
	})
}

// Every operation with a body gives an example of it and describes how a bad body is
// refused.
func TestEveryBodyCanBeRefused(t *testing.T) {
	t.Parallel()
	eachOperation(t, func(t *testing.T, _ *openapi3.T, operation *openapi3.Operation) {
		for _, status := range []int{400, 413, 415, 422} {
			if operation.RequestBody != nil && operation.Responses.Status(status) == nil {
				t.Errorf("takes a body, but does not describe answer %d", status)
			}
		}
		if operation.RequestBody == nil {
			return
		}
		media := operation.RequestBody.Value.Content["application/json"]
		if operation.OperationID == "pressSlackButton" { // Slack sends a form
			media = operation.RequestBody.Value.Content["application/x-www-form-urlencoded"]
		}
		if media == nil || media.Example == nil {
			t.Error("no example of the body")
		}
	})
}

// Every error answer is described as a Problem, with Retry-After where the client
// should wait. On a route that has a page, what a person can meet there is a page too.
func TestEveryErrorIsAProblem(t *testing.T) {
	t.Parallel()
	eachOperation(t, func(t *testing.T, _ *openapi3.T, operation *openapi3.Operation) {
		hasPage := operation.OperationID == "openShare" // a file, and its link is for people
		if shown := operation.Responses.Status(200); shown != nil && shown.Value.Content["text/html"] != nil {
			hasPage = true
		}
		for status, response := range operation.Responses.Map() {
			if status < "400" || operation.OperationID == "getReadiness" { // its 503 is a report, not an error
				continue
			}
			media := response.Value.Content["application/problem+json"]
			page := hasPage && slices.Contains([]string{"404", "429", "500", "503"}, status)
			want := 1
			if page {
				want = 2
			}
			if media == nil || len(response.Value.Content) != want || (response.Value.Content["text/html"] != nil) != page {
				t.Errorf("answer %s is not application/problem+json, with a page: %t", status, page)
				continue
			}
			if media.Schema.Ref != "#/components/schemas/Problem" || media.Example != nil || len(media.Examples) > 0 {
				t.Errorf("answer %s is not the plain Problem schema", status)
			}
			if _, waits := response.Value.Headers["Retry-After"]; waits != (status == "429" || status == "503") {
				t.Errorf("answer %s has Retry-After: %t", status, waits)
			}
		}
	})
}

// The document explains every error code that the API uses.
func TestErrorCodesAreExplained(t *testing.T) {
	t.Parallel()
	document := load(t)
	entries, _ := document.Extensions["x-error-codes"].([]any)
	var explained []any
	for _, entry := range entries {
		members, _ := entry.(map[string]any)
		explained = append(explained, members["code"])
		title, _ := members["title"].(string)
		description, _ := members["description"].(string)
		if title == "" || description == "" {
			t.Errorf("%v has no title or no description", members["code"])
		}
	}
	if diff := cmp.Diff(schemaOf(t, document, "ErrorCode").Enum, explained); diff != "" {
		t.Errorf("codes explained differ from the schema's (-schema +explained):\n%s", diff)
	}
}

// The descriptions of error answers name their codes, and each code stands with
// its own status.
func TestErrorAnswersNameTheirCodes(t *testing.T) {
	t.Parallel()
	document := load(t)
	codes := make(map[string]string)
	entries, _ := document.Extensions["x-error-codes"].([]any)
	for _, entry := range entries {
		members, _ := entry.(map[string]any)
		status, err := json.Marshal(members["status"])
		if err != nil {
			t.Fatal(err)
		}
		codes[members["code"].(string)] = string(status)
	}
	eachOperation(t, func(t *testing.T, _ *openapi3.T, operation *openapi3.Operation) {
		for status, response := range operation.Responses.Map() {
			if status < "400" || operation.OperationID == "getReadiness" {
				continue
			}
			var named []string
			for code, of := range codes {
				if strings.Contains(*response.Value.Description, "`"+code+"`") {
					named = append(named, of)
				}
			}
			if len(named) == 0 || slices.ContainsFunc(named, func(of string) bool { return of != status }) {
				t.Errorf("answer %s names codes of status %v", status, named)
			}
		}
	})
}

// Closed schemas let the tests of the server notice a member that nobody
// described.
func TestObjectsAreClosed(t *testing.T) {
	t.Parallel()
	for name, found := range load(t).Components.Schemas {
		schema := found.Value
		if len(schema.Properties) == 0 {
			continue
		}
		if schema.AdditionalProperties.Has == nil || *schema.AdditionalProperties.Has {
			t.Errorf("%s takes any member", name)
		}
		for _, required := range schema.Required {
			if schema.Properties[required] == nil {
				t.Errorf("%s requires %s, which it does not describe", name, required)
			}
		}
	}
}

// Every text in the API description has a length limit.
func TestTextsAreBounded(t *testing.T) {
	t.Parallel()
	for name, found := range load(t).Components.Schemas {
		schema := found.Value
		for property, ref := range schema.Properties {
			checkBound(t, name+"."+property, ref.Value)
		}
		checkBound(t, name, schema)
	}
}

func checkBound(t *testing.T, name string, schema *openapi3.Schema) {
	t.Helper()
	free := schema.Type.Includes("string") && schema.MaxLength == nil && schema.Enum == nil && schema.Const == nil
	if free {
		t.Errorf("%s is a text without a bound", name)
	}
	if schema.Type.Includes("array") && schema.Items != nil {
		checkBound(t, name+"[]", schema.Items.Value)
	}
}

// Records that come with something more repeat the plain record's members.
func TestExtendedRecords(t *testing.T) {
	t.Parallel()
	tests := []struct {
		plain, extended, extra string
		without                []string // what stands elsewhere
	}{
		{"Chain", "CompletedChain", "receipt", []string{"binding_key"}},
		{"ApiKey", "CreatedApiKey", "key", nil},
		{"Decision", "ReportedDecision", "violation", []string{"act_number", "continued_by", "fast_path_lease"}},
		{"Webhook", "CreatedWebhook", "secret", nil},
	}
	for _, test := range tests {
		t.Run(test.extended, func(t *testing.T) {
			t.Parallel()
			document := load(t)
			plain, extended := schemaOf(t, document, test.plain), schemaOf(t, document, test.extended)
			elsewhere := func(name string) bool { return slices.Contains(test.without, name) }
			want := append(slices.DeleteFunc(slices.Collect(maps.Keys(plain.Properties)), elsewhere), test.extra)
			got := slices.Collect(maps.Keys(extended.Properties))
			slices.Sort(want)
			slices.Sort(got)
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("members differ (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(append(slices.DeleteFunc(plain.Required, elsewhere), test.extra), extended.Required); diff != "" {
				t.Errorf("required members differ (-want +got):\n%s", diff)
			}
		})
	}
}

// Every answer is described under its own status code.
func TestStatusesAreNumbers(t *testing.T) {
	t.Parallel()
	eachOperation(t, func(t *testing.T, _ *openapi3.T, operation *openapi3.Operation) {
		for status := range operation.Responses.Map() {
			if _, err := strconv.Atoi(status); err != nil {
				t.Errorf("answer %q is not one status: list each that can happen", status)
			}
		}
	})
}
