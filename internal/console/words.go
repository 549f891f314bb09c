package console

import (
	"bytes"
	"encoding/json"
	"fmt"
	"html/template"
	"strconv"
	"strings"
	"unicode/utf8"

	"countersign/internal/ledger"
)

// words are what the templates say things with.
var words = template.FuncMap{
	"clock":  clock,
	"plain":  func(name any) string { return strings.ReplaceAll(fmt.Sprint(name), "_", " ") },
	"number": thousands,
	"pretty": pretty,
}

// clock writes a moment for people. A receipt's times are texts that an altered
// record may have filled with anything; those are shown as they are.
func clock(moment any) string {
	text := fmt.Sprint(moment)
	t, err := ledger.ParseTime(text)
	if err != nil {
		return text
	}
	return t.Std().Format("2006-01-02 15:04:05 UTC")
}

// thousands groups digits for the eye.
func thousands(n int64) string {
	digits := strconv.FormatInt(n, 10)
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}

// document is JSON laid out for reading. Only the beginning of a long one is
// shown: a page must stay one that a browser can show.
type document struct {
	Text        string
	Shown, Size int // bytes of the JSON
}

const longestDocument = 4 << 10

func pretty(data []byte) document {
	text := data[:min(len(data), longestDocument)]
	d := document{Shown: len(text), Size: len(data)}
	var laidOut bytes.Buffer
	if d.Shown == d.Size && json.Indent(&laidOut, data, "", "  ") == nil {
		text = laidOut.Bytes()
	}
	d.Text = strings.ToValidUTF8(string(text), string(utf8.RuneError))
	return d
}

// list is a slice of which only the beginning is shown.
type list[T any] struct {
	Shown []T
	More  int
}

func firstOf[T any](all []T, most int) list[T] {
	shown := all[:min(len(all), most)]
	return list[T]{Shown: shown, More: len(all) - len(shown)}
}
