package console

import (
	"bytes"
	"encoding/json"
	"fmt"
	"html/template"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"countersign/internal/ledger"
	"countersign/internal/service"
)

// words are the functions of the templates.
var words = template.FuncMap{
	"clock":    clock,
	"plain":    func(name any) string { return visible(strings.ReplaceAll(fmt.Sprint(name), "_", " ")) },
	"number":   thousands,
	"money":    money,
	"amountOf": amountOf,
	"pretty":   pretty,
	"visible":  visible,
	"said":     said,
	"left":     left,
	"client":   client,
}

// clock formats a time for people. The times of a receipt are texts, and a forged record can contain
// anything; what is not a time is shown unchanged.
func clock(moment any) string {
	text := fmt.Sprint(moment)
	t, err := ledger.ParseTime(text)
	if err != nil {
		return text
	}
	return t.Std().Format("2006-01-02 15:04:05 UTC")
}

// thousands formats a number with thousands separators.
func thousands(n int64) string { return ledger.GroupThousands(strconv.FormatInt(n, 10)) }

var dollars = regexp.MustCompile(`\b\d{4,}\.\d{2} USD\b`)

// said formats a message of the service. Recorded messages have amounts without thousands separators;
// said adds them.
func said(text string) string {
	return dollars.ReplaceAllStringFunc(visible(text), ledger.GroupThousands)
}

// money formats an amount for people. A forged receipt can contain any number; what is not an amount
// is shown unchanged.
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

// sum is the amount of an action.
type sum struct {
	Amount  *ledger.Money // in USD; nil if there is none
	Unknown bool          // it is missing, cannot be read or is in another currency
}

// amountOf returns the amount of an action by what was recorded of it. Of an amount that cannot be compared
// with a threshold, only the rule is recorded that asked about it.
func amountOf(amount *ledger.Money, matched []ledger.MatchedRule) sum {
	asked := func(m ledger.MatchedRule) bool { return m.Name == ledger.RuleAmountMissing }
	return sum{amount, amount == nil && slices.ContainsFunc(matched, asked)}
}

// document is indented JSON. Only the beginning of a long document is shown, so that browsers can
// render the page.
type document struct {
	Text        string
	Shown, Size int // bytes of the JSON before it was indented
}

const (
	maxDocument = 4 << 10 // bytes
	// maxPayload is the limit for a payload that a person must read before deciding, in bytes.
	maxPayload = 256 << 10
)

func pretty(data []byte) document { return layOut(data, maxDocument) }

func layOut(data []byte, longest int) document {
	text := data[:min(len(data), longest)]
	d := document{Shown: len(text), Size: len(data)}
	var laidOut bytes.Buffer
	// Indenting a deeply nested document would produce far more space than text.
	if d.Shown == d.Size && json.Indent(&laidOut, data, "", "  ") == nil && laidOut.Len() <= 4*longest {
		text = laidOut.Bytes()
	}
	d.Text = visible(strings.ToValidUTF8(string(text), string(utf8.RuneError)))
	return d
}

// visible escapes characters that a browser would hide or obey. For example, characters that change the
// direction of text can make a reviewer read something else than the text says, and invisible ones can
// carry text that only a model reads.
func visible(text string) string {
	var shown strings.Builder
	for _, r := range text {
		switch {
		case r == '\n' || !unicode.IsControl(r) && !invisible(r):
			shown.WriteRune(r)
		case r <= 0xffff:
			fmt.Fprintf(&shown, `\u%04x`, r)
		default:
			fmt.Fprintf(&shown, `\U%08x`, r)
		}
	}
	return shown.String()
}

// invisible reports whether a character has no shape of its own: format characters, separators of lines,
// what Unicode calls default-ignorable, and the blank of Braille.
func invisible(r rune) bool {
	return r == '\u2800' || unicode.In(r, unicode.Cf, unicode.Zl, unicode.Zp, unicode.Other_Default_Ignorable_Code_Point, unicode.Variation_Selector)
}

// left formats the time from now until a deadline.
func left(until, now ledger.Time) string {
	span := until.Sub(now)
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

// client says whether an agent still waits for a decision. An agent that stopped polling may come back,
// so the text never says that it is gone.
func client(c *service.Attendance, now ledger.Time) string {
	switch {
	case c.Waiting:
		return "is waiting"
	case c.LastPolledAt == nil:
		return "has never asked for the decision"
	default:
		return "last asked " + left(now, *c.LastPolledAt) + " ago, may have given up"
	}
}

// list is the beginning of a slice, with the number of elements that are not shown.
type list[T any] struct {
	Shown []T
	More  int
}

func firstOf[T any](all []T, most int) list[T] {
	shown := all[:min(len(all), most)]
	return list[T]{Shown: shown, More: len(all) - len(shown)}
}
