package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"text/tabwriter"

	"countersign/internal/ledger"
)

// printJSON writes what a script reads.
func (p *process) printJSON(value any) error {
	encoder := json.NewEncoder(p.out)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	return encoder.Encode(value)
}

// printTable writes what a person reads.
func (p *process) printTable(header []string, rows [][]string) error {
	table := tabwriter.NewWriter(p.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, strings.Join(header, "\t"))
	for _, row := range rows {
		cells := make([]string, len(row))
		for i, text := range row {
			cells[i] = oneLine(text)
		}
		fmt.Fprintln(table, strings.Join(cells, "\t"))
	}
	return table.Flush()
}

// oneLine is visible for a text that must not begin a line of its own: whoever writes the
// database could fake one.
func oneLine(text string) string { return strings.ReplaceAll(visible(text), "\n", `\n`) }

// say tells a person something that must not end up in a script's input.
func (p *process) say(format string, args ...any) {
	fmt.Fprintf(p.errOutput, format+"\n", args...)
}

// count is a number with its noun.
func count[N int | int64](n N, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

func timeText(t *ledger.Time) *string {
	if t == nil {
		return nil
	}
	text := t.String()
	return &text
}
