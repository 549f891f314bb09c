package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"countersign/internal/ledger"
)

// measurePgbench compares recorded events with what PostgreSQL's own load
// generator reaches with one bare insert to a transaction.
func measurePgbench(ctx context.Context, b *bench) (*Scenario, error) {
	s := &Scenario{Title: fmt.Sprintf("events on PostgreSQL and pgbench with one-row inserts, %d clients", manyConnections)}
	program := findPgbench()
	switch {
	case b.Postgres == "":
		s.Notes = append(s.Notes, "not measured: no PostgreSQL was given (--postgres)")
		return s, nil
	case program == "":
		s.Notes = append(s.Notes, "not measured: there is no pgbench in the path or below /usr/lib/postgresql")
		return s, nil
	}
	s.Notes = append(s.Notes, openingNote, "pgbench runs on the load generator's core, prepared statements, rows of the events' sizes, one unique index; its p50 is its average")
	p, err := b.newPgbench(ctx, program)
	if err != nil {
		return nil, err
	}
	t, end, err := b.startService(ctx, postgresName, nothing)
	if err != nil {
		return nil, errors.Join(err, p.drop())
	}
	targets := []*target{t, {name: pgbenchName}}
	err = b.rounds(ctx, targets, s, func(ctx context.Context, t *target) (*Measurement, error) {
		if t.name == pgbenchName {
			return p.run(ctx)
		}
		return b.eventLoad(t, manyConnections).drive(ctx)
	})
	if err := errors.Join(err, end(), p.drop()); err != nil {
		return nil, err
	}
	ratio := against(s.row(postgresName).Rounds, s.row(pgbenchName).Rounds, (*Measurement).rate)
	s.Bars = append(s.Bars, atLeast("events on PostgreSQL, of pgbench's inserts", 0.8, ratio, ""))
	return s, nil
}

func findPgbench() string {
	if path, err := exec.LookPath("pgbench"); err == nil {
		return path
	}
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/pgbench") // the pattern is sound
	if len(found) == 0 {
		return ""
	}
	return newest(found)
}

// pgbench is PostgreSQL's load generator with a database and a script for it.
type pgbench struct {
	bench    *bench
	program  string
	script   string
	database *url.URL
	drop     func() error
}

const pgbenchTable = `CREATE TABLE events (
  chain uuid NOT NULL, sequence int NOT NULL, idempotency_key text NOT NULL, body text NOT NULL, payload text NOT NULL,
  PRIMARY KEY (chain, sequence))`

func (b *bench) newPgbench(ctx context.Context, program string) (*pgbench, error) {
	address, drop, err := newDatabase(ctx, b.Postgres)
	if err != nil {
		return nil, err
	}
	p := &pgbench{bench: b, program: program, script: filepath.Join(b.dir, "insert.sql"), drop: drop}
	if p.database, err = url.Parse(address); err != nil {
		return nil, errors.Join(err, drop())
	}
	if err := administer(ctx, address, pgbenchTable); err != nil {
		return nil, errors.Join(err, drop())
	}
	if err := p.writeScript(); err != nil {
		return nil, errors.Join(err, drop())
	}
	return p, nil
}

// writeScript makes the insert from an event's own bytes.
func (p *pgbench) writeScript() error {
	f, err := newFiller(&records{org: &ledger.Organization{Settings: ledger.DefaultSettings()}, agent: placeholderKey()})
	if err != nil {
		return err
	}
	state := ledger.NewChainState(0, ledger.BuiltinPolicy.Version)
	f.action.IdempotencyKey = strings.Repeat("0", keyWidth)
	body := f.record(state, &f.opened, &f.action, ledger.TimeOf(time.Now())).Stored.Body
	script := fmt.Sprintf("INSERT INTO events VALUES (gen_random_uuid(), 1, '%s', %s, %s);\n",
		f.action.IdempotencyKey, literal(body), literal(f.action.Payload))
	return os.WriteFile(p.script, []byte(script), 0o600)
}

// literal writes text of the same length in which neither SQL nor pgbench, which
// takes what follows a colon for a variable even inside quotes, finds anything.
func literal(text []byte) string {
	return "'" + strings.NewReplacer("'", "_", ":", "_").Replace(string(text)) + "'"
}

var (
	pgbenchRate    = regexp.MustCompile(`(?m)^tps = ([\d.]+)`)
	pgbenchLatency = regexp.MustCompile(`(?m)^latency average = ([\d.]+) ms`)
	pgbenchCount   = regexp.MustCompile(`(?m)^number of transactions actually processed: (\d+)`)
	pgbenchFailed  = regexp.MustCompile(`(?m)^number of failed transactions: (\d+)`)
)

// run takes longer when a round is too short: pgbench counts whole seconds, and
// the time that it takes to connect is among them.
func (p *pgbench) run(ctx context.Context) (*Measurement, error) {
	const longest = 60
	seconds := max(1, int(p.bench.Duration.Round(time.Second).Seconds()))
	for {
		m, err := p.runFor(ctx, seconds)
		if !errors.Is(err, errTooShort) || seconds >= longest {
			return m, err
		}
		seconds *= 2
	}
}

var errTooShort = errors.New("pgbench completed no transaction")

func (p *pgbench) runFor(ctx context.Context, seconds int) (*Measurement, error) {
	address, environment := withoutPassword(p.database)
	//nolint:gosec // pgbench, where findPgbench found it
	cmd := exec.CommandContext(ctx, p.program, "--no-vacuum", "--protocol=prepared", "--client="+strconv.Itoa(manyConnections),
		"--jobs=1", "--time="+strconv.Itoa(seconds), "--file="+p.script, address)
	cmd.Env = append(foreignEnvironment(), environment...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = stopTimeout
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := p.bench.cores.start(cmd, p.bench.cores.load); err != nil {
		return nil, fmt.Errorf("start pgbench: %w", err)
	}
	if err := cmd.Wait(); err != nil {
		return nil, fmt.Errorf("pgbench: %w\n%s", err, out.String())
	}
	return readPgbench(out.String())
}

// withoutPassword splits an address into what the list of processes may show and what
// it must not. A password that only the environment knows stays there.
func withoutPassword(database *url.URL) (address string, environment []string) {
	shown, parameters := *database, database.Query()
	password, _ := database.User.Password()
	if parameters.Has("password") { // this one counts
		password = parameters.Get("password")
		parameters.Del("password")
		shown.RawQuery = strings.ReplaceAll(parameters.Encode(), "+", "%20") // libpq takes a plus for itself
	}
	if database.User != nil {
		shown.User = url.User(database.User.Username())
	}
	if password != "" {
		environment = append(environment, "PGPASSWORD="+password)
	}
	return shown.String(), environment
}

// readPgbench reads its summary. It gives no percentiles; the average stands for
// the median.
func readPgbench(out string) (*Measurement, error) {
	rate, latency, count := find(pgbenchRate, out), find(pgbenchLatency, out), find(pgbenchCount, out)
	if count == 0 && pgbenchCount.MatchString(out) {
		return nil, errTooShort
	}
	if rate == 0 || count == 0 {
		return nil, fmt.Errorf("pgbench's summary cannot be read:\n%s", out)
	}
	if find(pgbenchFailed, out) > 0 {
		return nil, fmt.Errorf("pgbench had failures:\n%s", out)
	}
	return &Measurement{
		Requests: int(count), Elapsed: time.Duration(count / rate * float64(time.Second)),
		P50: time.Duration(latency * float64(time.Millisecond)),
	}, nil
}

func find(pattern *regexp.Regexp, text string) float64 {
	match := pattern.FindStringSubmatch(text)
	if match == nil {
		return 0
	}
	value, _ := strconv.ParseFloat(match[1], 64)
	return value
}
