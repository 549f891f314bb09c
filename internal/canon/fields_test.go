package canon

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"countersign/internal/fault"
)

// faultsOf lists an error's faults as pointer: detail; nil for no error.
func faultsOf(t testing.TB, err error) []string {
	t.Helper()
	if err == nil {
		return nil
	}
	var own *fault.Error
	if !errors.As(err, &own) || own.Code != fault.CodeInvalid || len(own.Fields) == 0 {
		t.Fatalf("error %v, want one of code %s with its fields", err, fault.CodeInvalid)
	}
	var faults []string
	for _, field := range own.Fields {
		faults = append(faults, field.Pointer+": "+field.Detail)
	}
	return faults
}

// Each kind of field accepts its values, takes null for absent, and says at the
// field what it expects instead.
func TestFieldsReaders(t *testing.T) {
	t.Parallel()
	cases := []struct {
		name, body string
		read       func(*Fields) any
		want       any
		fault      string
	}{
		{"text", `{"x":"é"}`, func(f *Fields) any { return f.Text("x", 1) }, "é", ""},
		{"text missing", `{}`, func(f *Fields) any { return f.Text("x", 1) }, "", ""},
		{"text null", `{"x":null}`, func(f *Fields) any { return f.Text("x", 1) }, "", ""},
		{"text too long", `{"x":"éé"}`, func(f *Fields) any { return f.Text("x", 1) }, "", "/x: must have at most 1 characters"},
		{"text of NUL", `{"x":"a\u0000"}`, func(f *Fields) any { return f.Text("x", 5) }, "", "/x: must not contain the character U+0000"},
		{"text of a number", `{"x":1}`, func(f *Fields) any { return f.Text("x", 5) }, "", "/x: must be a string"},
		{"required", `{"x":"a"}`, func(f *Fields) any { return f.RequiredText("x", 5) }, "a", ""},
		{"required missing", `{}`, func(f *Fields) any { return f.RequiredText("x", 5) }, "", "/x: is required"},
		{"required empty", `{"x":""}`, func(f *Fields) any { return f.RequiredText("x", 5) }, "", "/x: is required"},
		{"required of a list", `{"x":[]}`, func(f *Fields) any { return f.RequiredText("x", 5) }, "", "/x: must be a string"},
		{"name", `{"x":"a b"}`, func(f *Fields) any { return f.Name("x", 5) }, "a b", ""},
		{"name of two lines", `{"x":"a\nb"}`, func(f *Fields) any { return f.Name("x", 5) }, "", "/x: must not contain control characters"},
		{"name with an escape", `{"x":"\u001b["}`, func(f *Fields) any { return f.RequiredName("x", 5) }, "", "/x: must not contain control characters"},
		{"one of", `{"x":"b"}`, func(f *Fields) any { return f.OneOf("x", "a", "b") }, "b", ""},
		{"one of missing", `{}`, func(f *Fields) any { return f.OneOf("x", "a", "b") }, "", ""},
		{"one of others", `{"x":"c"}`, func(f *Fields) any { return f.OneOf("x", "a", "b") }, "", "/x: must be one of a, b"},
		{"one of empty", `{"x":""}`, func(f *Fields) any { return f.OneOf("x", "a", "b") }, "", "/x: must be one of a, b"},
		{"one of a number", `{"x":1}`, func(f *Fields) any { return f.OneOf("x", "a") }, "", "/x: must be a string"},
		{"texts", `{"x":["a","b"]}`, func(f *Fields) any { return f.Texts("x", 2, 1) }, []string{"a", "b"}, ""},
		{"texts null", `{"x":null}`, func(f *Fields) any { return f.Texts("x", 2, 1) }, []string(nil), ""},
		{"texts none", `{"x":[]}`, func(f *Fields) any { return f.Texts("x", 2, 1) }, []string{}, ""},
		{"texts of a text", `{"x":"a"}`, func(f *Fields) any { return f.Texts("x", 2, 1) }, []string(nil), "/x: must be an array of strings"},
		{"texts too many", `{"x":["a","b","c"]}`, func(f *Fields) any { return f.Texts("x", 2, 1) }, []string(nil), "/x: must have at most 2 elements"},
		{"texts with a number", `{"x":["a",1]}`, func(f *Fields) any { return f.Texts("x", 2, 1) }, []string{"a"}, "/x/1: must be a string"},
		{"texts with an empty one", `{"x":[""]}`, func(f *Fields) any { return f.Texts("x", 2, 1) }, []string{}, "/x/0: must not be empty"},
		{"texts with a long one", `{"x":["ab"]}`, func(f *Fields) any { return f.Texts("x", 2, 1) }, []string{}, "/x/0: must have at most 1 characters"},
		{"object", `{"x":{"b":1,"a":2}}`, func(f *Fields) any { return string(f.Object("x", 20)) }, `{"a":2,"b":1}`, ""},
		{"object missing", `{}`, func(f *Fields) any { return f.Object("x", 20) }, []byte(nil), ""},
		{"object of a list", `{"x":[]}`, func(f *Fields) any { return f.Object("x", 20) }, []byte(nil), "/x: must be an object"},
		{"object too large", `{"x":{"a":"bcdef"}}`, func(f *Fields) any { return f.Object("x", 5) }, []byte(nil), "/x: must be at most 5 bytes of JSON"},
		{"bool", `{"x":true}`, func(f *Fields) any { return f.Bool("x") }, true, ""},
		{"bool null", `{"x":null}`, func(f *Fields) any { return f.Bool("x") }, false, ""},
		{"bool of a text", `{"x":"true"}`, func(f *Fields) any { return f.Bool("x") }, false, "/x: must be true or false"},
		{"int", `{"x":7}`, func(f *Fields) any { return f.Int("x", 1, 9) }, int64(7), ""},
		{"int as a fraction", `{"x":7.5}`, func(f *Fields) any { return f.Int("x", 1, 9) }, int64(0), "/x: must be an integer from 1 to 9"},
		{"int too small", `{"x":0}`, func(f *Fields) any { return f.Int("x", 1, 9) }, int64(0), "/x: must be an integer from 1 to 9"},
		{"int of a text", `{"x":"7"}`, func(f *Fields) any { return f.Int("x", 1, 9) }, int64(0), "/x: must be an integer from 1 to 9"},
		{"number", `{"x":0.5}`, func(f *Fields) any { return f.Number("x", 0, 1) }, 0.5, ""},
		{"number too large", `{"x":1.5}`, func(f *Fields) any { return f.Number("x", 0, 1) }, 0.0, "/x: must be a number from 0 to 1"},
		{"number of a bool", `{"x":true}`, func(f *Fields) any { return f.Number("x", 0, 1) }, 0.0, "/x: must be a number from 0 to 1"},
		{"ignored", `{"x":[1]}`, func(f *Fields) any { f.Ignore("x"); return nil }, nil, ""},
		{"unknown", `{"x":1}`, func(*Fields) any { return nil }, nil, "/x: is not a known field"},
		{"not an object", `[1]`, func(f *Fields) any { return f.Has("x") }, false, ": must be an object"},
		{"has null", `{"x":null}`, func(f *Fields) any { return []bool{f.Has("x"), f.Given("x")} }, []bool{false, true}, ""},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			f := NewFields(mustParse(t, c.body))
			if diff := cmp.Diff(c.want, c.read(f)); diff != "" {
				t.Errorf("value (-want +got):\n%s", diff)
			}
			var want []string
			if c.fault != "" {
				want = []string{c.fault}
			}
			if diff := cmp.Diff(want, faultsOf(t, f.Err())); diff != "" {
				t.Errorf("faults (-want +got):\n%s", diff)
			}
		})
	}
}

// A refusal lists every fault of a request, each with its JSON pointer.
func TestFieldsCollectEveryFault(t *testing.T) {
	t.Parallel()
	f := NewFields(mustParse(t, `{"a":1,"b":{"c/d":true,"e":2},"~f":0}`))
	f.RequiredText("missing", 5)
	f.Text("a", 5)
	nested := f.Nested("b")
	nested.Int("e", 5, 6)
	f.Join(nested)
	want := []string{
		"/missing: is required",
		"/a: must be a string",
		"/b/e: must be an integer from 5 to 6",
		"/b/c~1d: is not a known field",
		"/~0f: is not a known field",
	}
	if diff := cmp.Diff(want, faultsOf(t, f.Err())); diff != "" {
		t.Errorf("faults (-want +got):\n%s", diff)
	}
}

// A request with very many or very long unknown fields gets a bounded list of
// faults.
func TestFieldsBoundTheirAnswer(t *testing.T) {
	t.Parallel()
	var body strings.Builder
	body.WriteString(`{"` + strings.Repeat("é", 200) + `":1`)
	for i := range 200 {
		body.WriteString(`,"x` + strings.Repeat("y", i) + `":1`)
	}
	faults := faultsOf(t, NewFields(mustParse(t, body.String()+"}")).Err())
	if len(faults) != maxFaults {
		t.Errorf("%d faults are listed, want %d", len(faults), maxFaults)
	}
	for _, listed := range faults {
		if len(listed) > 160 {
			t.Errorf("a fault of %d bytes", len(listed))
		}
	}
}

// Asking for the members of an object lists them in order and makes them known.
func TestFieldsMembers(t *testing.T) {
	t.Parallel()
	f := NewFields(mustParse(t, `{"b":1,"a":2}`))
	var names []string
	for _, member := range f.Members() {
		names = append(names, member.Name)
	}
	if diff := cmp.Diff([]string{"a", "b"}, names); diff != "" {
		t.Errorf("names (-want +got):\n%s", diff)
	}
	if err := f.Err(); err != nil {
		t.Errorf("members that were asked for are unknown: %v", err)
	}
	if NewFields(mustParse(t, `{"x":null}`)).Nested("x") != nil {
		t.Error("null is read as an object")
	}
}
