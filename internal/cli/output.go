package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"countersign/internal/ledger"
)

// Output is standard output. It remembers that something could not be written, because most commands
// print without looking at errors: a new key that was lost must not look like success.
type Output struct {
	io.Writer
	err error // the first
}

func (o *Output) Write(b []byte) (int, error) {
	n, err := o.Writer.Write(b)
	if err != nil && o.err == nil {
		o.err = err
	}
	return n, err
}

// Complete adds to the error of a command that its output was not written.
func (o *Output) Complete(err error) error {
	if o.err == nil || errors.Is(err, o.err) {
		return err
	}
	return errors.Join(err, fmt.Errorf("the output was not written: %w", o.err))
}

// PrintJSON writes value to standard output, for scripts.
func (p *Process) PrintJSON(value any) error {
	encoder := json.NewEncoder(p.Out)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	return encoder.Encode(value)
}

// PrintTable writes a table to standard output, for people.
func (p *Process) PrintTable(header []string, rows [][]string) error {
	table := tabwriter.NewWriter(p.Out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, strings.Join(header, "\t"))
	for _, row := range rows {
		cells := make([]string, len(row))
		for i, text := range row {
			cells[i] = OneLine(text)
		}
		fmt.Fprintln(table, strings.Join(cells, "\t"))
	}
	return table.Flush()
}

// OneLine is Printable that also escapes line feeds: otherwise an agent, or whoever can
// write the database, could forge a line of the output.
func OneLine(text string) string { return strings.ReplaceAll(Printable(text), "\n", `\n`) }

// Notef writes a line to standard error, where it does not mix with what scripts read.
func (p *Process) Notef(format string, args ...any) {
	fmt.Fprintf(p.Err, format+"\n", args...)
}

// Count formats a number with its noun, in the plural unless n is 1.
func Count[N int | int64](n N, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// TimeText formats an optional time; nil stays nil, for JSON null.
func TimeText(t *ledger.Time) *string {
	if t == nil {
		return nil
	}
	text := t.String()
	return &text
}

// Printable escapes characters that a terminal would interpret or hide: agents choose
// names and payloads.
func Printable(text string) string {
	var b strings.Builder
	for _, r := range text {
		switch {
		case r == '\n' || unicode.IsPrint(r) && !invisible(r):
			b.WriteRune(r)
		case r <= 0xffff:
			fmt.Fprintf(&b, `\u%04x`, r)
		default:
			fmt.Fprintf(&b, `\U%08x`, r)
		}
	}
	return b.String()
}

// invisible reports whether a character has no shape although it counts as printable: one
// that Unicode calls default-ignorable, or the blank of Braille.
func invisible(r rune) bool {
	return r == '\u2800' || unicode.In(r, unicode.Other_Default_Ignorable_Code_Point, unicode.Variation_Selector)
}

// Cells shortens and escapes texts for a row of a table.
func Cells(texts ...string) []string {
	const longest = 70
	for i, text := range texts {
		texts[i] = Printable(strings.ReplaceAll(cut(text, longest), "\n", " "))
	}
	return texts
}

func cut(text string, limit int) string {
	if runes := []rune(text); len(runes) > limit {
		return string(runes[:limit-1]) + "…"
	}
	return text
}

// MaxSlug is how many bytes of a slug are shown. The service gives out no longer ones.
const MaxSlug = 64

// Quoted returns the first bytes of an untrusted text, with everything but printable
// ASCII escaped.
func Quoted(text string, most int) string {
	if text == "" {
		return "-"
	}
	shown := strconv.QuoteToASCII(text[:min(len(text), most)])
	return shown[1 : len(shown)-1]
}

// CheckMark returns the mark of a check; "·" means not checked or not applicable.
func CheckMark(status ledger.CheckStatus) string {
	switch status {
	case ledger.CheckPass:
		return "✓"
	case ledger.CheckFail:
		return "✗"
	default:
		return "·"
	}
}

// FormatTime formats a time as RFC 3339, in UTC.
func FormatTime(at time.Time) string { return at.UTC().Format(time.RFC3339) }

// None fills a cell without a value.
const None = "-"

// Dollars formats an amount as the console does.
func Dollars(amount float64) string { return ledger.MoneyOf(amount).Display() + " USD" }

// ParseExpiry parses a time, or a duration from now; "" means none.
func ParseExpiry(text string, now ledger.Time) (*ledger.Time, error) {
	if text == "" {
		return nil, nil
	}
	if at, err := ledger.ParseTime(text); err == nil {
		return &at, nil
	}
	span, err := ParseSpan(text)
	if err != nil || span <= 0 {
		return nil, fmt.Errorf("--expires %q is neither a time such as 2030-01-31T00:00:00Z nor a duration such as 90d or 12h", text)
	}
	at := now.Add(span)
	return &at, nil
}

// ParseSpan parses a duration in Go's form, or a number of days such as 90d.
func ParseSpan(text string) (time.Duration, error) {
	const day, most = 24 * time.Hour, 36500
	count, isDays := strings.CutSuffix(text, "d")
	if !isDays {
		return time.ParseDuration(text)
	}
	days, err := strconv.Atoi(count)
	if err != nil || days < 0 || days > most {
		return 0, fmt.Errorf("%q is not a number of days from 0 to %d", count, most)
	}
	return time.Duration(days) * day, nil
}

// ParseReceiptName parses a receipt's id or number into the form that the API takes in a
// path.
func ParseReceiptName(text string) (string, error) {
	if id, err := ledger.ParseID(text); err == nil {
		return id.String(), nil
	}
	number := strings.ToUpper(strings.TrimSpace(text))
	if _, ok := ledger.ParseReceiptNumber(number); !ok {
		return "", errors.New("give a receipt's id, or its number (CSN-…); countersign receipts list shows them")
	}
	return number, nil
}
