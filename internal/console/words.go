package console

import (
	"bytes"
	"encoding/json"
	"fmt"
	"html/template"
	"regexp"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"countersign/internal/ledger"
	"countersign/internal/service"
)

// words are what the templates say things with.
var words = template.FuncMap{
	"clock":   clock,
	"plain":   func(name any) string { return strings.ReplaceAll(fmt.Sprint(name), "_", " ") },
	"number":  thousands,
	"money":   money,
	"pretty":  pretty,
	"visible": visible,
	"said":    said,
	"left":    left,
	"client":  client,
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
func thousands(n int64) string { return ledger.GroupThousands(strconv.FormatInt(n, 10)) }

var dollars = regexp.MustCompile(`\b\d{4,}\.\d{2} USD\b`)

// said shows a sentence of the service's. The record keeps its amounts plain; on a
// page they look as all others do.
func said(text string) string {
	return dollars.ReplaceAllStringFunc(visible(text), ledger.GroupThousands)
}

// money writes an amount for people. A receipt's amounts are numbers that an
// altered record may have filled with anything; those are shown as they are.
func money(amount any) string {
	var exact ledger.Money
	switch a := amount.(type) {
	case ledger.Money:
		exact = a
	case *ledger.Money:
		exact = *a
	case json.Number:
		read, err := ledger.ParseMoney(a.String())
		if err != nil {
			return a.String()
		}
		exact = read
	}
	return exact.Display()
}

// document is JSON laid out for reading. Only the beginning of a long one is
// shown: a page must stay one that a browser can show.
type document struct {
	Text        string
	Shown, Size int // bytes of the JSON
}

const (
	longestDocument = 4 << 10
	// longestPayload is for what a person must read before deciding.
	longestPayload = 256 << 10
)

func pretty(data []byte) document { return layOut(data, longestDocument) }

func layOut(data []byte, longest int) document {
	text := data[:min(len(data), longest)]
	d := document{Shown: len(text), Size: len(data)}
	var laidOut bytes.Buffer
	// Deep nesting would make far more space than text.
	if d.Shown == d.Size && json.Indent(&laidOut, data, "", "  ") == nil && laidOut.Len() <= 4*longest {
		text = laidOut.Bytes()
	}
	d.Text = visible(strings.ToValidUTF8(string(text), string(utf8.RuneError)))
	return d
}

// visible writes out what a browser would not show, or would obey: characters that
// turn the direction of a text make a reviewer read another one than is there.
func visible(text string) string {
	var shown strings.Builder
	for _, r := range text {
		if r != '\n' && (unicode.IsControl(r) || unicode.Is(unicode.Cf, r) || r == '\u2028' || r == '\u2029') {
			fmt.Fprintf(&shown, "\\u%04x", r)
		} else {
			shown.WriteRune(r)
		}
	}
	return shown.String()
}

// left says how long it is from now until a moment.
func left(until, now ledger.Time) string {
	span := until.Std().Sub(now.Std())
	hours, minutes := int(span.Hours()), int(span.Minutes())%60
	switch {
	case span <= 0:
		return "none"
	case hours >= 48:
		return fmt.Sprintf("%d days", hours/24)
	case hours > 0:
		return fmt.Sprintf("%d h %d min", hours, minutes)
	case minutes > 0:
		return fmt.Sprintf("%d min", minutes)
	default:
		return "under a minute"
	}
}

// client says whether an agent still waits for a decision. One that has gone
// may come back, and so it is never said to be gone.
func client(c *service.Attendance, now ledger.Time) string {
	switch {
	case c.Waiting:
		return "is waiting"
	case c.LastPolledAt == nil:
		return "has never asked for the answer"
	default:
		return "last asked " + left(now, *c.LastPolledAt) + " ago, may have given up"
	}
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
