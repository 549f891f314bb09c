package bench

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
)

// WriteTable writes the report for people.
func (r *Report) WriteTable(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s, %s, %d cores; %d rounds of %s, medians\n", r.Machine.System, r.Machine.Go, r.Machine.Cores, r.Rounds, r.Duration)
	fmt.Fprintf(&b, "%s\n", r.Machine.Pinning)
	for _, warning := range r.Machine.Warnings {
		fmt.Fprintf(&b, "warning: %s\n", warning)
	}
	for _, s := range r.Scenarios {
		s.write(&b)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func (s *Scenario) write(b *strings.Builder) {
	fmt.Fprintf(b, "\n%s: %s\n", s.Name, s.Title)
	for _, note := range s.Notes {
		fmt.Fprintf(b, "  (%s)\n", note)
	}
	t := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
	if len(s.Rows) > 0 {
		fmt.Fprint(t, "  target\trequest's CPU\ttimes bare\tPostgreSQL's\tper second\tof bare\tp50\tp99\tserver CPU\tload CPU\n")
	}
	for _, row := range s.Rows {
		fmt.Fprintf(t, "  %s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", row.Target,
			latency(row.Cost), orDash(row.CPURatio, ratio), latency(row.BackendCost),
			number(row.Rate), orDash(row.Ratio, percent), latency(row.P50), latency(row.P99),
			orDash(row.ServerCPU, percent), orDash(row.LoadCPU, percent))
	}
	flush(t)
	for _, figure := range s.Figures {
		fmt.Fprintf(t, "  %s\t%s\n", figure.What, strings.TrimSpace(number(figure.Value)+" "+figure.Unit))
	}
	flush(t)
	for _, bar := range s.Bars {
		fmt.Fprintf(t, "  %s %s\t%s, wanted %s\n", mark(bar.Met), bar.What, bar.show(bar.Got), bar.wanted())
	}
	flush(t)
}

// flush ends a group of lines that share their columns.
func flush(t *tabwriter.Writer) { _ = t.Flush() } // into memory

func (bar Bar) wanted() string {
	if bar.AtLeast {
		return "≥ " + bar.show(bar.Want)
	}
	return "≤ " + bar.show(bar.Want)
}

func (bar Bar) show(v float64) string {
	if bar.Unit == "" {
		return ratio(v)
	}
	return strings.TrimSpace(number(v) + " " + bar.Unit)
}

func mark(met bool) string {
	if met {
		return "✓"
	}
	return "✗"
}

func number(v float64) string {
	if v >= 1000 {
		return strconv.FormatFloat(v, 'f', 0, 64)
	}
	return strconv.FormatFloat(v, 'g', 4, 64)
}

func latency(d time.Duration) string {
	if d == 0 {
		return "-"
	}
	return d.Round(100 * time.Nanosecond).String()
}

func percent(v float64) string { return fmt.Sprintf("%.1f %%", 100*v) }
func ratio(v float64) string   { return fmt.Sprintf("%.2f", v) }

func orDash(v float64, show func(float64) string) string {
	if v == 0 {
		return "-"
	}
	return show(v)
}
