package canon

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"math"
	"testing"
	"unicode/utf8"

	"github.com/gowebpki/jcs"
)

// FuzzParse holds the reader against encoding/json, which knows the grammar,
// and the writer against another implementation of RFC 8785.
func FuzzParse(f *testing.F) {
	v := readVectors(f)
	for _, vector := range v.Canonical {
		f.Add([]byte(vector.Input))
	}
	for _, vector := range v.Refused {
		input, err := base64.StdEncoding.DecodeString(vector.InputBase64)
		if err != nil {
			f.Fatal(err)
		}
		if vector.Input != nil {
			input = []byte(*vector.Input)
		}
		f.Add(input)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		value, err := Parse(data)
		if err != nil {
			checkRefusal(t, data, err)
			return
		}
		if !json.Valid(data) {
			t.Fatal("accepted, but not JSON")
		}
		out := value.Append(nil)
		again, err := Parse(out)
		if err != nil {
			t.Fatalf("its own output is refused: %v", err)
		}
		if second := again.Append(nil); !bytes.Equal(out, second) {
			t.Fatalf("no fixpoint: %s, then %s", out, second)
		}
		if value.Kind() != Array && value.Kind() != Object {
			return
		}
		opinion, err := jcs.Transform(data)
		if err != nil {
			t.Fatalf("the other implementation refuses it: %v", err)
		}
		if !bytes.Equal(out, opinion) {
			t.Fatalf("written as %s, elsewhere as %s", out, opinion)
		}
	})
}

// checkRefusal asserts that a text is refused for one of the reasons we mean
// to have, and never because the reader does not know the grammar.
func checkRefusal(t *testing.T, data []byte, err error) {
	t.Helper()
	var fault *Error
	if !errors.As(err, &fault) {
		t.Fatalf("refused with %T", err)
	}
	if fault.Offset < 0 || fault.Offset > len(data) || len(fault.Pointer) > maxPointer || !utf8.ValidString(fault.Pointer) {
		t.Fatalf("offset %d or pointer %q out of bounds", fault.Offset, fault.Pointer)
	}
	valid := json.Valid(data)
	switch fault.Reason {
	case reasonDepth:
		// The text was not read any further, so nothing is known of the rest.
	case reasonInexact:
		if !valid {
			t.Fatalf("not JSON, but refused as if it were: %v", err)
		}
	case reasonDuplicate, reasonUTF8, reasonSurrogate:
		// encoding/json lets these pass, but there may be worse behind them.
	default:
		if valid {
			t.Fatalf("JSON, but refused as if it were not: %v", err)
		}
	}
	if fault.WellFormed != (fault.Reason == reasonDepth || fault.Reason == reasonInexact) {
		t.Fatalf("well-formed %t: %v", fault.WellFormed, err)
	}
}

// FuzzAppendNumber walks over the bits of doubles.
func FuzzAppendNumber(f *testing.F) {
	for _, seed := range []float64{0, 1, -1, 0.1, 1e-7, 1e-6, 1e21, 1e22, 1e23, 1e100, 1 << 53, 5e-324, math.MaxFloat64, 49.99} {
		f.Add(math.Float64bits(seed))
	}
	f.Fuzz(func(t *testing.T, bits uint64) {
		number := math.Float64frombits(bits)
		if math.IsNaN(number) || math.IsInf(number, 0) {
			return
		}
		out := AppendNumber(nil, number)
		opinion, err := jcs.NumberToJSON(number)
		if err != nil {
			t.Fatal(err)
		}
		if string(out) != opinion {
			t.Fatalf("written as %s, elsewhere as %s", out, opinion)
		}
		read, err := Parse(out)
		if err != nil {
			t.Fatalf("%s is refused: %v", out, err)
		}
		if read.Float() != number {
			t.Fatalf("%v is read back as %v", number, read.Float())
		}
	})
}

// FuzzAppendString holds string literals against encoding/json's reader.
func FuzzAppendString(f *testing.F) {
	for _, seed := range []string{"", "a", "\"\\/\b\f\n\r\t", "\x00\x1f\x7f", "<&>\u2028", "é€\U0001f600", "\xff\xed\xa0\x80", "\ufffd"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, s string) {
		out := AppendString(nil, s)
		want := string([]rune(s))
		var decoded string
		if err := json.Unmarshal(out, &decoded); err != nil {
			t.Fatalf("%s is not JSON: %v", out, err)
		}
		if decoded != want {
			t.Fatalf("%q is read back as %q", want, decoded)
		}
		read, err := Parse(out)
		if err != nil {
			t.Fatalf("%s is refused: %v", out, err)
		}
		if read.Str() != want {
			t.Fatalf("%q is read back as %q by Parse", want, read.Str())
		}
	})
}
