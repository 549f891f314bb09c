package canon

import (
	"bytes"
	"math"
	"testing"

	"github.com/gowebpki/jcs"
)

// FuzzObjectWriter holds the member-by-member writer against the general one and
// against another implementation of RFC 8785, for values of any content.
func FuzzObjectWriter(f *testing.F) {
	f.Add("", "", int64(0), 0.0, false)
	f.Add("plain", "text", int64(7), 1.5, true)
	f.Add("quote\" back\\ \x00\x1f\u2028", "\U0001f600\xff", int64(1)<<53, -1e-7, true)
	f.Add("\ud7ff\ue000", "</script>", -int64(1)<<53, 1e21, false)
	f.Fuzz(func(t *testing.T, first, second string, whole int64, number float64, flag bool) {
		if math.IsNaN(number) || math.IsInf(number, 0) || whole > 1<<53 || whole < -1<<53 {
			return
		}
		nested := BeginObject(nil)
		nested.String("only", first)
		before := []byte("before")
		w := BeginObject(before)
		w.Bool("bool", flag)
		w.Int("int", whole)
		w.Strings("list", []string{first, second, ""})
		w.Strings("list_empty", nil)
		w.Value(append(w.Name("nested"), nested.End()...))
		w.Null("null")
		w.Number("number", number)
		w.StringOrNull("or_null", second)
		w.Raw("raw", []byte(`{"a":[1,2]}`))
		w.Raw("raw_none", nil)
		w.String("text", first)
		out, found := bytes.CutPrefix(w.End(), before)
		if !found {
			t.Fatal("what stood before is gone")
		}
		parsed, err := Parse(out)
		if err != nil {
			t.Fatalf("%s is refused: %v", out, err)
		}
		if general := parsed.Append(nil); !bytes.Equal(out, general) {
			t.Fatalf("written as %s, by the general writer as %s", out, general)
		}
		opinion, err := jcs.Transform(out)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(out, opinion) {
			t.Fatalf("written as %s, elsewhere as %s", out, opinion)
		}
		text, _ := parsed.Get("text")
		if want := string([]rune(first)); text.Str() != want {
			t.Fatalf("%q is read back as %q", want, text.Str())
		}
	})
}

// An object without members is written as {}.
func TestObjectWriterEmpty(t *testing.T) {
	t.Parallel()
	w := BeginObject(nil)
	if got := string(w.End()); got != "{}" {
		t.Errorf("an object without members is %s", got)
	}
}
