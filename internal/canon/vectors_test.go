package canon

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"math"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

type vectors struct {
	Canonical []pair `json:"canonical"`
	Writer    []pair `json:"writer"`
	Refused   []struct {
		Name        string  `json:"name"`
		Input       *string `json:"input"`
		InputBase64 string  `json:"input_base64"`
		Pointer     string  `json:"pointer"`
		WellFormed  bool    `json:"well_formed"`
	} `json:"refused"`
	Numbers []struct {
		IEEE754 string  `json:"ieee754"`
		Text    *string `json:"text"`
	} `json:"numbers"`
}

type pair struct {
	Name   string `json:"name"`
	Input  string `json:"input"`
	Output string `json:"output"`
}

func readVectors(t testing.TB) vectors {
	t.Helper()
	data, err := os.ReadFile("../../testdata/vectors/canonical.json")
	if err != nil {
		t.Fatal(err)
	}
	var v vectors
	if err := json.Unmarshal(data, &v); err != nil {
		t.Fatal(err)
	}
	if len(v.Canonical) == 0 || len(v.Writer) == 0 || len(v.Refused) == 0 || len(v.Numbers) == 0 {
		t.Fatal("a list of vectors is empty")
	}
	return v
}

// The published vectors of canonical JSON hold, and canonical text stays as it is.
func TestCanonicalVectors(t *testing.T) {
	t.Parallel()
	for _, vector := range readVectors(t).Canonical {
		t.Run(vector.Name, func(t *testing.T) {
			t.Parallel()
			got, err := Canonicalize([]byte(vector.Input))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(vector.Output, string(got)); diff != "" {
				t.Errorf("canonical text (-want +got):\n%s", diff)
			}
			again, err := Canonicalize(got)
			if err != nil {
				t.Fatalf("its own output is refused: %v", err)
			}
			if diff := cmp.Diff(string(got), string(again)); diff != "" {
				t.Errorf("no fixpoint (-first +second):\n%s", diff)
			}
		})
	}
}

// Every document that the published vectors refuse is refused at the same place.
func TestRefusedVectors(t *testing.T) {
	t.Parallel()
	for _, vector := range readVectors(t).Refused {
		t.Run(vector.Name, func(t *testing.T) {
			t.Parallel()
			input, err := base64.StdEncoding.DecodeString(vector.InputBase64)
			if err != nil {
				t.Fatal(err)
			}
			if vector.Input != nil {
				input = []byte(*vector.Input)
			}
			_, err = Parse(input)
			var fault *Error
			if !errors.As(err, &fault) {
				t.Fatalf("Parse: %v, want an *Error", err)
			}
			if fault.Pointer != vector.Pointer {
				t.Errorf("pointer %q, want %q (%v)", fault.Pointer, vector.Pointer, fault)
			}
			if fault.WellFormed != vector.WellFormed {
				t.Errorf("well-formed %t, want %t (%v)", fault.WellFormed, vector.WellFormed, fault)
			}
			if fault.Offset < 0 || fault.Offset > len(input) {
				t.Errorf("offset %d is outside of the %d bytes", fault.Offset, len(input))
			}
		})
	}
}

// The published vectors for building values hold.
func TestWriterVectors(t *testing.T) {
	t.Parallel()
	for _, vector := range readVectors(t).Writer {
		t.Run(vector.Name, func(t *testing.T) {
			t.Parallel()
			var decoded any
			if err := json.Unmarshal([]byte(vector.Input), &decoded); err != nil {
				t.Fatal(err)
			}
			got := build(t, decoded).Append(nil)
			if diff := cmp.Diff(vector.Output, string(got)); diff != "" {
				t.Errorf("canonical text (-want +got):\n%s", diff)
			}
		})
	}
}

// build makes a Value of what encoding/json decoded, with the constructors.
func build(t *testing.T, decoded any) Value {
	t.Helper()
	var v Value
	var err error
	switch d := decoded.(type) {
	case nil:
		v = NullValue()
	case bool:
		v = BoolValue(d)
	case float64:
		v, err = NumberValue(d)
	case string:
		v, err = StringValue(d)
	case []any:
		var items []Value
		for _, item := range d {
			items = append(items, build(t, item))
		}
		v = ArrayValue(items...)
	case map[string]any:
		var members []Member
		for name, value := range d {
			members = append(members, Member{Name: name, Value: build(t, value)})
		}
		v, err = ObjectValue(members...)
	default:
		t.Fatalf("unexpected %T", decoded)
	}
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// The published vectors of numbers hold in both directions.
func TestNumberVectors(t *testing.T) {
	t.Parallel()
	for _, vector := range readVectors(t).Numbers {
		t.Run(vector.IEEE754, func(t *testing.T) {
			t.Parallel()
			raw, err := hex.DecodeString(vector.IEEE754)
			if err != nil {
				t.Fatal(err)
			}
			f := math.Float64frombits(binary.BigEndian.Uint64(raw))
			v, err := NumberValue(f)
			if vector.Text == nil {
				if err == nil {
					t.Fatalf("NumberValue accepted %v", f)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got := string(v.Append(nil)); got != *vector.Text {
				t.Errorf("written as %s, want %s", got, *vector.Text)
			}
			read, err := Parse([]byte(*vector.Text))
			if err != nil {
				t.Fatal(err)
			}
			if read.Float() != f {
				t.Errorf("read back as %v, want %v", read.Float(), f)
			}
		})
	}
}

// Every published vector has a name of its own.
func TestVectorNamesAreUnique(t *testing.T) {
	t.Parallel()
	v := readVectors(t)
	seen := map[string]bool{}
	note := func(list, name string) {
		key := list + ": " + name
		if seen[key] || strings.TrimSpace(name) == "" {
			t.Errorf("%q is empty or used twice", key)
		}
		seen[key] = true
	}
	for _, p := range v.Canonical {
		note("canonical", p.Name)
	}
	for _, r := range v.Refused {
		note("refused", r.Name)
	}
}
