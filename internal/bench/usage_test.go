package bench

import (
	"context"
	"strings"
	"testing"
	"time"
)

// A server's share of its core is what nobody else can have taken from it: idle time
// is its own, and so is what PostgreSQL and the load generator used elsewhere.
func TestCoreShare(t *testing.T) {
	t.Parallel()
	const ms = time.Millisecond
	cases := map[string]struct {
		used usage
		want float64
	}{
		"not told":            {usage{server: 900 * ms}, 0},
		"all used":            {usage{server: 1000 * ms, load: 500 * ms, cores: idle{0, 500 * ms, 2}}, 1},
		"partly idle":         {usage{server: 600 * ms, load: 500 * ms, cores: idle{400 * ms, 900 * ms, 2}}, 1},
		"taken on its core":   {usage{server: 700 * ms, load: 500 * ms, cores: idle{0, 500 * ms, 2}}, 0.7},
		"taken elsewhere":     {usage{server: 1000 * ms, load: 500 * ms, cores: idle{0, 0, 2}}, 1},
		"taken by PostgreSQL": {usage{server: 500 * ms, backends: 800 * ms, load: 600 * ms, cores: idle{0, 100 * ms, 2}}, 1},
		"beside PostgreSQL":   {usage{server: 500 * ms, backends: 500 * ms, load: 600 * ms, cores: idle{0, 0, 2}}, 0.6},
	}
	for name, c := range cases {
		if got := c.used.coreShare(time.Second); got < c.want-1e-9 || got > c.want+1e-9 {
			t.Errorf("%s: got %v, want %v", name, got, c.want)
		}
	}
}

// A round in which any server had less than 90 % of its core is dropped, noted, and
// replaced by another. If none is better, the best are reported, and the note says so.
func TestStarvedRoundsAreDropped(t *testing.T) {
	t.Parallel()
	cases := []struct {
		name          string
		shares        [][2]float64 // of two targets, round by round
		kept, dropped int
		note          string
	}{
		{"all good", [][2]float64{{1, 0.9}, {0.95, 1}}, 2, 0, ""},
		{"not told", [][2]float64{{0, 0}, {0, 0}}, 2, 0, ""},
		{"some starved", [][2]float64{{1, 0.89}, {1, 1}, {0.2, 1}, {1, 1}}, 2, 2, "2 of 4 rounds dropped"},
		{"one good", [][2]float64{{1, 0.8}, {0.8, 1}, {0.2, 1}, {1, 1}, {1, 0.1}, {1, 0.1}}, 1, 5, "5 of 6 rounds dropped"},
		{"all starved", [][2]float64{{0.5, 1}, {1, 0.8}, {0.5, 1}, {0.5, 1}, {0.7, 1}, {1, 0.5}}, 2, 4, "in each of 6 rounds"},
	}
	for _, c := range cases {
		b := &bench{Config: Config{Rounds: 2, Duration: time.Second, Progress: func(string, ...any) {}}}
		s := &Scenario{}
		measured := 0
		err := b.takeRounds(t.Context(), []*target{{name: "one"}, {name: "two"}}, s, func(context.Context, *target) (*Measurement, error) {
			share := c.shares[measured/2][measured%2]
			measured++
			return &Measurement{CoreShare: share}, nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if measured != 2*len(c.shares) {
			t.Errorf("%s: %d measurements, want %d", c.name, measured, 2*len(c.shares))
		}
		for _, row := range s.Rows {
			if len(row.Rounds) != c.kept || row.Dropped != c.dropped {
				t.Errorf("%s: %d rounds kept and %d dropped, want %d and %d", c.name, len(row.Rounds), row.Dropped, c.kept, c.dropped)
			}
			for _, m := range row.Rounds {
				if m.CoreShare == 0.5 {
					t.Errorf("%s: one of the worst rounds counts", c.name)
				}
			}
		}
		if note := strings.Join(s.Notes, ""); len(s.Rows) != 2 || !strings.HasPrefix(note, c.note) || (note == "") != (c.note == "") {
			t.Errorf("%s: got %d rows, %q, want 2, %q", c.name, len(s.Rows), note, c.note)
		}
	}
}

// The ratio of processor times is taken within a round, and its target is missed by a
// service that needs more.
func TestCPUBars(t *testing.T) {
	t.Parallel()
	second := func(requests int, cpu float64) *Measurement {
		return &Measurement{Requests: requests, Elapsed: time.Second, ServerCPU: cpu}
	}
	s := &Scenario{Rows: []*Row{
		summarize(bareName, []*Measurement{second(1000, 1), second(1000, 0.5)}),
		summarize(sqliteName, []*Measurement{second(500, 1), second(500, 0.5)}),
		summarize(postgresName, []*Measurement{second(500, 0.75), second(1000, 0.75)}),
	}}
	s.compareWithBare()
	s.cpuBars("a request", 1.7)
	if len(s.Bars) != 2 || s.Bars[0].Got != 2 || s.Bars[0].Met || s.Bars[1].Got != 1.5 || !s.Bars[1].Met {
		t.Errorf("got %+v, want 2 on SQLite, missed, and 1.5 on PostgreSQL, met", s.Bars)
	}
}
