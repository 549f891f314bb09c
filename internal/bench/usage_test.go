package bench

import (
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

// A round in which any server had less than 90 % of its core is dropped and noted. If
// that leaves none, all are kept, and the note says so.
func TestStarvedRoundsAreDropped(t *testing.T) {
	t.Parallel()
	measured := func(shares ...float64) round {
		var r round
		for _, share := range shares {
			r = append(r, &Measurement{CoreShare: share})
		}
		return r
	}
	cases := []struct {
		name string
		all  []round
		kept int
		note string
	}{
		{"all good", []round{measured(1, 0.9), measured(0.95, 1)}, 2, ""},
		{"not told", []round{measured(0, 0)}, 1, ""},
		{"one starved", []round{measured(1, 0.89), measured(1, 1), measured(0.2, 1)}, 1, "2 of 3 rounds dropped"},
		{"all starved", []round{measured(0.5, 1), measured(1, 0.5)}, 2, "in each of the 2 rounds"},
	}
	for _, c := range cases {
		kept, note := accepted(c.all)
		if len(kept) != c.kept || !strings.HasPrefix(note, c.note) || (note == "") != (c.note == "") {
			t.Errorf("%s: got %d rounds, %q, want %d, %q", c.name, len(kept), note, c.kept, c.note)
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
