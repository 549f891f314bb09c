package bench

import (
	"bytes"
	"errors"
	"math"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// The median of an even number of values is the mean of the middle two.
func TestMedian(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		values []float64
		want   float64
	}{{nil, 0}, {[]float64{3}, 3}, {[]float64{9, 1, 5}, 5}, {[]float64{4, 1, 2, 3}, 2.5}} {
		if got := median(c.values); got != c.want {
			t.Errorf("median of %v is %v, want %v", c.values, got, c.want)
		}
	}
}

// A percentile is the smallest sample that as many percent of the samples do not
// exceed.
func TestPercentile(t *testing.T) {
	t.Parallel()
	hundred := make([]time.Duration, 100)
	for i := range hundred {
		hundred[i] = time.Duration(i + 1)
	}
	for _, c := range []struct {
		sorted []time.Duration
		p      int
		want   time.Duration
	}{{nil, 50, 0}, {hundred[:1], 99, 1}, {hundred[:2], 50, 1}, {hundred, 50, 50}, {hundred, 99, 99}, {hundred, 100, 100}} {
		if got := percentile(c.sorted, c.p); got != c.want {
			t.Errorf("percentile %d of %d samples is %v, want %v", c.p, len(c.sorted), got, c.want)
		}
	}
}

// Two targets are compared within each round, and the median of the ratios counts.
func TestRatiosAreTakenWithinARound(t *testing.T) {
	t.Parallel()
	second := func(requests int) *Measurement { return &Measurement{Requests: requests, Elapsed: time.Second} }
	ours := []*Measurement{second(50), second(10), second(300)}
	theirs := []*Measurement{second(100), second(20), second(1000)}
	if got := against(ours, theirs, (*Measurement).rate); got != 0.5 {
		t.Errorf("got %v, want 0.5, the median of the rounds' ratios", got)
	}
}

// Welch's statistic is that of the samples that are left when the slowest tenth is
// trimmed: their means, their variances, and their number.
func TestWelchCountsWhatIsLeft(t *testing.T) {
	t.Parallel()
	// Of ten values, nine are left: the means are 5 and 8, both variances 7.5.
	a := []float64{1, 2, 3, 4, 5, 6, 7, 8, 9, 1000}
	b := []float64{4, 5, 6, 7, 8, 9, 10, 11, 12, 50}
	want := -3 / math.Sqrt(7.5/9+7.5/9)
	if got := welch(a, b); math.Abs(got-want) > 1e-9 {
		t.Errorf("got %v, want %v", got, want)
	}
}

// answering is a connection whose other side answers with given pieces.
//
//countersign:host it runs the server that is measured
func answering(t *testing.T, pieces ...string) *connection {
	t.Helper()
	ours, theirs := net.Pipe()
	t.Cleanup(func() { _ = ours.Close() })
	go func() {
		defer func() { _ = theirs.Close() }()
		if _, err := theirs.Read(make([]byte, 1024)); err != nil {
			return
		}
		for _, piece := range pieces {
			if _, err := theirs.Write([]byte(piece)); err != nil {
				return
			}
		}
	}()
	return &connection{conn: ours, in: make([]byte, 0, 16)}
}

// The benchmark client reads a complete answer in any pieces and refuses an
// incomplete or wrong one.
func TestExchange(t *testing.T) {
	t.Parallel()
	cases := []struct {
		name   string
		pieces []string
		body   string
		err    string
	}{
		{"whole", []string{"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"}, "hi", ""},
		{"in pieces", []string{"HTTP/1.1 201 Created\r", "\nContent-Length: 5\r\n\r", "\nhe", "llo"}, "hello", ""},
		{"empty body", []string{"HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n\r\n"}, "", ""},
		{"refused", []string{"HTTP/1.1 429 Too Many Requests\r\nContent-Length: 4\r\n\r\nwait"}, "", "429"},
		{"no length", []string{"HTTP/1.1 200 OK\r\nDate: now\r\n\r\n"}, "", errNoLength.Error()},
		{"bad length", []string{"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n"}, "", errNoLength.Error()},
		{"not HTTP", []string{"SSH-2.0\r\nContent-Length: 0\r\n\r\n"}, "", errNotHTTP.Error()},
		{"two answers", []string{"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nab"}, "", errSurplus.Error()},
		{"cut off", []string{"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nab"}, "", "EOF"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			body, err := answering(t, c.pieces...).exchange([]byte("GET / HTTP/1.1\r\n\r\n"))
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) {
					t.Fatalf("got %v, want an error with %q", err, c.err)
				}
				return
			}
			if err != nil || !bytes.Equal(body, []byte(c.body)) {
				t.Fatalf("got %q, %v, want %q", body, err, c.body)
			}
		})
	}
}

// The result of pgbench is read, unless it failed or processed nothing.
func TestReadPgbench(t *testing.T) {
	t.Parallel()
	const summary = "number of transactions actually processed: 3000\nnumber of failed transactions: 0 (0.000%)\n" +
		"latency average = 20.5 ms\ntps = 1500.0 (without initial connection time)\n"
	m, err := readPgbench(summary)
	if err != nil || m.Requests != 3000 || m.rate() != 1500 || m.P50 != 20500*time.Microsecond {
		t.Errorf("got %+v, %v", m, err)
	}
	if _, err := readPgbench(strings.Replace(summary, "3000", "0", 1)); !errors.Is(err, errTooShort) {
		t.Errorf("got %v, want %v", err, errTooShort)
	}
	for _, bad := range []string{"", strings.Replace(summary, "transactions: 0", "transactions: 7", 1)} {
		if _, err := readPgbench(bad); err == nil {
			t.Errorf("%q was read", bad)
		}
	}
}

// Of several versions of a program the highest is measured, by its numbers.
func TestNewest(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, name := range []string{"opa@v1.9.4", "opa@v1.17.0", "opa@v1.2.30"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := findPeer(dir, "opa"); err != nil || filepath.Base(got) != "opa@v1.17.0" {
		t.Errorf("got %q, %v, want opa@v1.17.0", got, err)
	}
	if got := newest([]string{"/9.6/bin/pgbench", "/15/bin/pgbench", "/14/bin/pgbench"}); got != "/15/bin/pgbench" {
		t.Errorf("got %q, want /15/bin/pgbench", got)
	}
}

// The password of a database is passed to pgbench in the environment alone, wherever the
// address has it. An address without one leaves it to the environment.
func TestWithoutPassword(t *testing.T) {
	t.Parallel()
	for given, want := range map[string]struct {
		address     string
		environment []string
	}{
		"postgres://bench:secret@db/x":                                    {"postgres://bench@db/x", []string{"PGPASSWORD=secret"}},
		"postgres://bench@db/x?password=secret&sslmode=disable":           {"postgres://bench@db/x?sslmode=disable", []string{"PGPASSWORD=secret"}},
		"postgres://bench@db/x?options=-c%20jit%3Doff&password=a%2Bb%20c": {"postgres://bench@db/x?options=-c%20jit%3Doff", []string{"PGPASSWORD=a+b c"}},
		"postgres://bench@db/x":                                           {"postgres://bench@db/x", nil},
		"postgres://db/x":                                                 {"postgres://db/x", nil},
	} {
		database, err := url.Parse(given)
		if err != nil {
			t.Fatal(err)
		}
		if address, environment := withoutPassword(database); address != want.address || !slices.Equal(environment, want.environment) {
			t.Errorf("%s: got %q, %q, want %q, %q", given, address, environment, want.address, want.environment)
		}
	}
}

// refusal is a session of which one connection is refused at once; the others wait for
// an answer.
type refusal struct{ connection int }

func (s refusal) step(c *connection) (bool, error) {
	if s.connection == 1 {
		return true, errNotHTTP
	}
	return true, c.read()
}

// A request that fails ends the round of all connections at once.
//
//countersign:host it runs the server that is measured
func TestDriveEndsWithTheFirstFailure(t *testing.T) {
	t.Parallel()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	l := &load{
		server: &server{address: listener.Addr().String(), cmd: &exec.Cmd{Process: &os.Process{Pid: os.Getpid()}}}, connections: 3,
		duration: 20 * time.Second, session: func(i int) session { return refusal{i} },
	}
	began := time.Now()
	if _, err := l.drive(t.Context()); !errors.Is(err, errNotHTTP) || !strings.Contains(err.Error(), "connection 1") {
		t.Errorf("got %v, want the refusal of connection 1", err)
	}
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("it ended after %s", took)
	}
}

// Memory is judged only where the system tells it.
func TestMemoryThatIsNotTold(t *testing.T) {
	t.Parallel()
	s := &Scenario{}
	s.addMemory(sqliteName, 2*time.Second, 0, 0)
	if len(s.Bars) != 1 || s.Bars[0].Got != 2000 || s.Bars[0].Met || len(s.Figures) != 0 {
		t.Errorf("got %+v, %+v, want the start alone, missed", s.Bars, s.Figures)
	}
	s = &Scenario{}
	s.addMemory(sqliteName, time.Millisecond, 50_000_000, 90_000_000)
	if len(s.Bars) != 2 || s.Bars[1].Got != 90 || !s.Bars[1].Met || len(s.Figures) != 1 || s.Figures[0].Value != 50 {
		t.Errorf("got %+v, %+v, want the start, 90 MB, and 50 MB after the start", s.Bars, s.Figures)
	}
}
