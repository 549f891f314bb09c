package canon

import (
	"errors"
	"math"
	"slices"
	"strings"
	"testing"
	"unicode/utf16"

	"github.com/google/go-cmp/cmp"
)

func mustParse(t testing.TB, text string) Value {
	t.Helper()
	v, err := Parse([]byte(text))
	if err != nil {
		t.Fatalf("Parse(%s): %v", text, err)
	}
	return v
}

// A value answers for its own kind and gives zero values for all others.
func TestAccessorsAnswerForTheirKindOnly(t *testing.T) {
	t.Parallel()
	type facts struct {
		Kind    Kind
		Null    bool
		Bool    bool
		Float   float64
		Int     int64
		IsInt   bool
		Str     string
		Items   int
		Members int
	}
	tests := map[string]facts{
		"null":               {Kind: Null, Null: true},
		"true":               {Kind: Bool, Bool: true},
		"false":              {Kind: Bool},
		"1":                  {Kind: Number, Float: 1, Int: 1, IsInt: true},
		"-2.5":               {Kind: Number, Float: -2.5},
		"9007199254740992":   {Kind: Number, Float: 1 << 53, Int: 1 << 53, IsInt: true},
		"-9007199254740992":  {Kind: Number, Float: -1 << 53, Int: -1 << 53, IsInt: true},
		"9007199254740994":   {Kind: Number, Float: 1<<53 + 2},
		"1e300":              {Kind: Number, Float: 1e300},
		`"text"`:             {Kind: String, Str: "text"},
		`[]`:                 {Kind: Array},
		`[1,2]`:              {Kind: Array, Items: 2},
		`{}`:                 {Kind: Object},
		`{"a":1,"b":2,"":3}`: {Kind: Object, Members: 3},
	}
	for text, want := range tests {
		t.Run(text, func(t *testing.T) {
			t.Parallel()
			v := mustParse(t, text)
			n, isInt := v.Int()
			got := facts{v.Kind(), v.IsNull(), v.Bool(), v.Float(), n, isInt, v.Str(), len(v.Items()), len(v.Members())}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("accessors (-want +got):\n%s", diff)
			}
		})
	}
}

// The zero value is null.
func TestZeroValueIsNull(t *testing.T) {
	t.Parallel()
	var zero Value
	if !zero.IsNull() || zero.Kind() != Null || string(zero.Append(nil)) != "null" {
		t.Errorf("the zero Value is %s", zero.Append(nil))
	}
}

// Negative zero becomes zero.
func TestNegativeZeroLosesItsSign(t *testing.T) {
	t.Parallel()
	built, err := NumberValue(math.Copysign(0, -1))
	if err != nil {
		t.Fatal(err)
	}
	for name, v := range map[string]Value{"built": built, "parsed": mustParse(t, "-0")} {
		if math.Signbit(v.Float()) {
			t.Errorf("%s: still negative", name)
		}
	}
}

// A member is found by its name, and only in an object that has it.
func TestGet(t *testing.T) {
	t.Parallel()
	object := mustParse(t, `{"b":2,"a":1,"\ufb33":3,"\ud83d\ude00":4,"":5}`)
	for name, want := range map[string]float64{"a": 1, "b": 2, "\ufb33": 3, "\U0001f600": 4, "": 5} {
		if v, ok := object.Get(name); !ok || v.Float() != want {
			t.Errorf("Get(%q) = %v, %t, want %v", name, v.Float(), ok, want)
		}
	}
	if _, ok := object.Get("c"); ok {
		t.Error(`Get("c") found something`)
	}
	if _, ok := mustParse(t, `["a"]`).Get("a"); ok {
		t.Error("Get found a member in an array")
	}
}

// Members are in the order of their names as UTF-16.
func TestMembersAreInCanonicalOrder(t *testing.T) {
	t.Parallel()
	var names []string
	for _, m := range mustParse(t, `{"\ufb33":1,"b":2,"\ud83d\ude00":3,"a":4}`).Members() {
		names = append(names, m.Name)
	}
	if diff := cmp.Diff([]string{"a", "b", "\U0001f600", "\ufb33"}, names); diff != "" {
		t.Errorf("order (-want +got):\n%s", diff)
	}
}

// A value that has no canonical form cannot be made.
func TestConstructorsRefuse(t *testing.T) {
	t.Parallel()
	discard := func(_ Value, err error) error { return err }
	a := Member{Name: "a"}
	tests := map[string]error{
		"NaN":                discard(NumberValue(math.NaN())),
		"infinity":           discard(NumberValue(math.Inf(1))),
		"negative infinity":  discard(NumberValue(math.Inf(-1))),
		"invalid UTF-8":      discard(StringValue("a\xff")),
		"duplicate name":     discard(ObjectValue(a, Member{Name: "b"}, a)),
		"invalid UTF-8 name": discard(ObjectValue(Member{Name: "\xff"})),
	}
	for name, err := range tests {
		var fault *Error
		if !errors.As(err, &fault) {
			t.Errorf("%s: %v, want an *Error", name, err)
		}
	}
}

// Integers up to 2^53 in size are kept exactly.
func TestIntegersAtTheirBounds(t *testing.T) {
	t.Parallel()
	for _, n := range []int64{0, 1, -1, 1 << 53, -1 << 53} {
		v, err := NumberValue(float64(n))
		if err != nil {
			t.Fatal(err)
		}
		if got, ok := v.Int(); !ok || got != n {
			t.Errorf("NumberValue(%d).Int() = %d, %t", n, got, ok)
		}
		if got, want := string(AppendInt(nil, n)), string(v.Append(nil)); got != want {
			t.Errorf("AppendInt writes %s, Append %s", got, want)
		}
	}
}

// Writing a number that has no canonical form panics.
func TestWritersPanicOnWhatHasNoForm(t *testing.T) {
	t.Parallel()
	tests := map[string]func(){
		"NaN":            func() { AppendNumber(nil, math.NaN()) },
		"infinity":       func() { AppendNumber(nil, math.Inf(-1)) },
		"2^53 + 1":       func() { AppendInt(nil, 1<<53+1) },
		"smallest int64": func() { AppendInt(nil, math.MinInt64) },
	}
	for name, write := range tests {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", name)
				}
			}()
			write()
		}()
	}
}

// Each invalid byte of a string is written as the replacement character.
func TestAppendStringReplacesEachInvalidByte(t *testing.T) {
	t.Parallel()
	if got, want := string(AppendString([]byte("x"), "a\xff\xfe\n")), "x\"a\ufffd\ufffd\\n\""; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// A value does not change with the memory that it was made from.
func TestValuesShareNothingWithTheirSource(t *testing.T) {
	t.Parallel()
	data := []byte(`{"a":["x"]}`)
	parsed, err := Parse(data)
	if err != nil {
		t.Fatal(err)
	}
	clear(data)

	items := []Value{BoolValue(true)}
	array := ArrayValue(items...)
	items[0] = Value{}

	members := []Member{{Name: "b"}, {Name: "a"}}
	object, err := ObjectValue(members...)
	if err != nil {
		t.Fatal(err)
	}
	if members[0].Name != "b" {
		t.Error("ObjectValue sorted the caller's slice")
	}
	members[0].Name = "z"

	got := string(ArrayValue(parsed, array, object).Append(nil))
	if diff := cmp.Diff(`[{"a":["x"]},[true],{"a":null,"b":null}]`, got); diff != "" {
		t.Errorf("canonical text (-want +got):\n%s", diff)
	}
}

// Names are compared in the order of their UTF-16 code units.
func TestCompareNamesIsUTF16Order(t *testing.T) {
	t.Parallel()
	pieces := []string{"", "\x00", "a", "b", "\u007f", "\u0080", "\u07ff", "\u0800", "\ud7ff", "\ue000", "\uefff",
		"\uf000", "\ufb33", "\uffff", "\U00010000", "\U0001f600", "\U000fffff", "\U00100000", "\U0010ffff"}
	var names []string
	for _, first := range pieces {
		for _, second := range pieces {
			names = append(names, first+second)
		}
	}
	for _, a := range names {
		for _, b := range names {
			want := slices.Compare(utf16.Encode([]rune(a)), utf16.Encode([]rune(b)))
			if got := compareNames(a, b); sign(got) != want {
				t.Fatalf("compareNames(%q, %q) = %d, want %d", a, b, got, want)
			}
		}
	}
}

func sign(n int) int { return min(1, max(-1, n)) }

// A parse error repeats no value of the document.
func TestErrorsDoNotRepeatValues(t *testing.T) {
	t.Parallel()
	const secret = "hunter2"
	for _, text := range []string{
		`{"a":"` + secret + "\n\"}", `{"a":"` + secret + `\q"}`, `{"a":"` + secret + `"x}`, `{"a":` + secret + `}`,
		`{"a":"` + secret + "\xff\"}", `{"a":"` + secret + `\ud800"}`, `["` + secret + `",1e400]`, `"` + secret,
	} {
		_, err := Parse([]byte(text))
		if err == nil {
			t.Fatalf("%s was accepted", text)
		}
		if strings.Contains(err.Error(), secret) {
			t.Errorf("the error repeats a value: %v", err)
		}
	}
}

// A parse error is one line, with the place of the fault.
func TestErrorTextHasNoLineBreaks(t *testing.T) {
	t.Parallel()
	_, err := Parse([]byte(`{"a\nb":x}`))
	if want := `json: expected a value (at "/a\nb", byte 8)`; err == nil || err.Error() != want {
		t.Errorf("error %v, want %s", err, want)
	}
}

// The pointer in a parse error is cut off at a limit, between two characters.
func TestPointersAreBounded(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("n", 300)
	tests := map[string]struct{ text, want string }{
		"one long name":       {`{"` + long + `":x}`, "/" + long[:252] + "…"},
		"between characters":  {`{"` + strings.Repeat("é", 200) + `":x}`, "/" + strings.Repeat("é", 126) + "…"},
		"many names":          {strings.Repeat(`{"`+long[:20]+`":`, 64) + "x", strings.Repeat("/"+long[:20], 12) + "/…"},
		"exactly at the edge": {`{"` + long[:255] + `":x}`, "/" + long[:255]},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := Parse([]byte(test.text))
			var fault *Error
			if !errors.As(err, &fault) {
				t.Fatalf("Parse: %v, want an *Error", err)
			}
			if diff := cmp.Diff(test.want, fault.Pointer); diff != "" {
				t.Errorf("pointer (-want +got):\n%s", diff)
			}
		})
	}
}

// Very long numbers are read exactly or refused.
func TestLongLiterals(t *testing.T) {
	t.Parallel()
	const many = 50_000
	zeros := strings.Repeat("0", many)
	tests := map[string]struct {
		text, want string
	}{
		"digits":                   {strings.Repeat("7", many), ""},
		"fraction":                 {"0." + strings.Repeat("7", many), ""},
		"trailing zeros":           {"1.5" + zeros, "1.5"},
		"far too large":            {"1" + zeros, ""},
		"far too small":            {"0." + zeros + "1", ""},
		"zeros undone by exponent": {"1" + zeros + "e-50000", "1"},
		"exponent undone by zeros": {"0." + zeros + "25e50001", "2.5"},
		"digits of an exponent":    {"1e" + strings.Repeat("9", many), ""},
		"zeros of an exponent":     {"1e" + zeros + "2", "100"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := Canonicalize([]byte(test.text))
			if refused := err != nil; refused != (test.want == "") {
				t.Fatalf("error %v, want the text %q", err, test.want)
			}
			if string(got) != test.want {
				t.Errorf("written as %s, want %s", got, test.want)
			}
		})
	}
}

// Objects of any size are written and read back unchanged, also around another object.
func TestObjectsBeyondTheUsualSize(t *testing.T) {
	t.Parallel()
	for _, size := range []int{insertionSortLimit, insertionSortLimit + 1, pooledMembers - 1, pooledMembers, pooledMembers + 1, 1000} {
		var members []Member
		for i := range size {
			members = append(members, Member{Name: string(rune('a'+i*7919%size)) + "x"})
		}
		inner, err := ObjectValue(members...)
		if err != nil {
			t.Fatal(err)
		}
		members[size/2].Value = inner
		object, err := ObjectValue(members...)
		if err != nil {
			t.Fatal(err)
		}
		text := object.Append(nil)
		if got := mustParse(t, string(text)); len(got.Members()) != size || string(got.Append(nil)) != string(text) {
			t.Errorf("an object of %d members changes on its way", size)
		}
	}
}
