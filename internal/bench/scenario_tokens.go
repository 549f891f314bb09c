package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"

	"countersign/internal/ledger"
	"countersign/internal/service"
)

const (
	// fewTokens are asked about again before a verdict is too old to be reused.
	fewTokens = 200
	// manyTokens are not: in turn, each is asked about again after some seconds.
	manyTokens = 20_000
	// expiry is far enough in the future for a token to be issued on a busy machine.
	expiry = 2 * time.Second
)

// withTokens is a store with receipts and a public token for each, and tokens that
// open nothing any more.
func (b *bench) withTokens(ctx context.Context, r *records) (*filled, error) {
	receipts := manyTokens
	if b.short() {
		receipts = 2 * fewTokens
	}
	made, err := r.fill(ctx, receipts+b.roundsAtMost()*b.firstTokens(), eventsPerCompletion, true)
	if err != nil {
		return nil, err
	}
	admin, err := r.service.Authenticate(ctx, r.admin.Text.Reveal())
	if err != nil {
		return nil, err
	}
	issue := func(id uuid.UUID, expires *ledger.Time) (*service.Token, string, error) {
		request := &service.TokenRequest{Artifact: ledger.ArtifactReceipt, ArtifactID: id, ExpiresAt: expires}
		token, text, err := r.service.IssueToken(ctx, admin, request, "")
		return token, text.Reveal(), err
	}
	made.tokens = make([]string, len(made.receipts))
	// At once, so that many are committed together.
	var issuing errgroup.Group
	issuing.SetLimit(manyConnections)
	for i, id := range made.receipts {
		issuing.Go(func() error {
			_, text, err := issue(id.UUID, nil)
			made.tokens[i] = text
			return err
		})
	}
	if err := issuing.Wait(); err != nil {
		return nil, err
	}
	token, revoked, err := issue(made.receipts[0].UUID, nil)
	if err != nil {
		return nil, err
	}
	if _, err := r.service.RevokeToken(ctx, admin, token.ID, ""); err != nil {
		return nil, err
	}
	made.expires = r.service.Now().Add(expiry)
	_, expired, err := issue(made.receipts[0].UUID, &made.expires)
	made.dead = map[string]string{
		"revoked": revoked, "expired": expired,
		"unknown": "cvt_" + strings.Repeat("1", len(tokenPlace)-len("cvt_")),
		// In characters that no token has and an address carries as they are: others
		// cost net/http their escaping, before anyone has looked at a token.
		"malformed": strings.Repeat("~", len(tokenPlace)),
	}
	return made, err
}

// measureTokens compares the verification behind a public link with the bare
// server, and the ways in which a link can fail with each other.
func measureTokens(ctx context.Context, b *bench) (*Scenario, error) {
	s := &Scenario{
		Title: fmt.Sprintf("public verification tokens, %d connections", manyConnections),
		Notes: []string{
			"the limit on public requests is off; the bare server answers a receipt check",
			fmt.Sprintf("first: each of %d tokens once, whose chains nobody has checked yet; fresh: over so many in turn (%d in a run of a second or more) that each verdict is made again; read again: the same, while another program writes to the database every %s, so that every chain is read; reused: over %d, whose verdicts are reused", b.firstTokens(), manyTokens, foreignPause, fewTokens),
			"on PostgreSQL every fresh verdict reads the chain",
			fmt.Sprintf("timing: %d requests of each kind that fails, in random order on one connection; the largest |t| of Welch's test between two kinds", timedRequests),
		},
	}
	err := b.withTargets(ctx, b.withTokens, func(targets []*target) error {
		bare, services := targets[0], targets[1:]
		asked := map[*target]*queue{bare: {ids: []string{idPlace}, endless: true}}
		rows := []*target{bare}
		unseen := make(map[*target][]string)
		var again target // fresh, while another program writes
		for _, t := range services {
			first, fresh, reused := *t, *t, *t
			first.name, fresh.name, reused.name = t.name+", first", t.name+", fresh", t.name+", reused"
			seen := len(t.filled.tokens) - b.roundsAtMost()*b.firstTokens()
			unseen[&first] = t.filled.tokens[seen:]
			asked[&fresh] = &queue{ids: t.filled.tokens[fewTokens:seen], endless: true}
			asked[&reused] = &queue{ids: t.filled.tokens[:fewTokens], endless: true}
			rows = append(rows, &first, &fresh, &reused)
			if t.name == sqliteName {
				again = *t
				again.name = t.name + ", read again"
				asked[&again] = asked[&fresh]
			}
		}
		for _, t := range rows {
			if tokens := asked[t]; tokens != nil && !t.bare() {
				if err := checkOnce(ctx, t, tokens.ids); err != nil {
					return err
				}
			}
		}
		one := func(ctx context.Context, t *target) (*Measurement, error) {
			l := &load{server: t.server, connections: manyConnections, warmUp: b.warmUp(), duration: b.Duration}
			if tokens, ok := unseen[t]; ok {
				asked[t], unseen[t] = &queue{ids: tokens[:b.firstTokens()]}, tokens[b.firstTokens():]
				l.warmUp = 0
			}
			l.session = func(int) session {
				if t.bare() {
					return newCheckSession(asked[t])
				}
				return newTokenSession(asked[t])
			}
			return l.drive(ctx)
		}
		if err := b.rounds(ctx, rows, s, one); err != nil {
			return err
		}
		s.compareWithBare()
		row, err := b.disturbedRow(ctx, bare, &again, one)
		if err != nil {
			return err
		}
		s.Rows = append(s.Rows, row)
		for _, t := range services {
			largest, err := b.tellApart(ctx, t)
			if err != nil {
				return err
			}
			s.Bars = append(s.Bars, atMost("telling failing tokens apart by time on "+t.name+", |t|", 4.5, largest, ""))
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	for _, name := range b.serviceNames() {
		s.Bars = append(s.Bars,
			atLeast("fresh token checks on "+name+", of the bare server's rate", 0.2, s.row(name+", fresh").Ratio, ""),
			atLeast("reused verdicts on "+name+", of the bare server's rate", 0.3, s.row(name+", reused").Ratio, ""))
	}
	s.cpuBars("a token check", 3)
	s.p99Bars()
	return s, nil
}

// checkOnce follows each token once. A round is too short for that: without it, most of what is
// asked about in turn would be checked for the first time.
func checkOnce(ctx context.Context, t *target, tokens []string) error {
	once := &queue{ids: tokens}
	l := &load{server: t.server, connections: manyConnections, duration: time.Minute, session: func(int) session { return newTokenSession(once) }}
	_, err := l.drive(ctx)
	return err
}

// foreignPause is the time between two commits of another program.
const foreignPause = 100 * time.Millisecond

// disturbedRow measures a target in rounds of its own, while another program writes to its database: in
// rounds of all, the others would have to read again what they have proven.
func (b *bench) disturbedRow(ctx context.Context, bare, t *target, one measure) (_ *Row, err error) {
	end, err := disturb(ctx, t)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, end()) }()
	apart := &Scenario{}
	if err := b.rounds(ctx, []*target{bare, t}, apart, one); err != nil {
		return nil, err
	}
	apart.compareWithBare()
	return apart.row(t.name), nil
}

// disturb writes to a target's database as another program would, until end is called.
func disturb(ctx context.Context, t *target) (end func() error, err error) {
	db, err := openStore(ctx, t.place)
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(ctx)
	var writing errgroup.Group
	writing.Go(func() error {
		for ctx.Err() == nil {
			if err := db.Probe(ctx); err != nil && ctx.Err() == nil {
				return fmt.Errorf("write as another program: %w", err)
			}
			pause(ctx, foreignPause)
		}
		return nil
	})
	return func() error {
		stop()
		return errors.Join(writing.Wait(), db.Close())
	}, nil
}

const timedRequests = 2000

// tellApart times the answers to tokens that fail in different ways.
func (b *bench) tellApart(ctx context.Context, t *target) (float64, error) {
	pause(ctx, t.filled.expires.Sub(ledger.TimeOf(time.Now()))+time.Millisecond)
	c, err := dial(ctx, t.server.address)
	if err != nil {
		return 0, err
	}
	defer c.close()
	if err := c.expire(time.Now().Add(time.Minute)); err != nil {
		return 0, err
	}
	requests := make(map[string][]byte)
	var order []string
	for kind, token := range t.filled.dead {
		requests[kind] = request("GET", "/public/v2/verify/"+token, "", "")
		for range b.timed() {
			order = append(order, kind)
		}
	}
	rand.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] }) //nolint:gosec // nobody gains by guessing the order
	times := make(map[string][]float64)
	for _, kind := range order {
		began := time.Now()
		if err := c.refused(requests[kind]); err != nil {
			return 0, fmt.Errorf("a token that is %s: %w", kind, err)
		}
		times[kind] = append(times[kind], float64(time.Since(began)))
	}
	return largestT(times), nil
}

// timed is fewer in a short run.
func (b *bench) timed() int {
	if b.short() {
		return timedRequests / 20
	}
	return timedRequests
}

// firstTokens is how many tokens are asked about for the first time in each round.
func (b *bench) firstTokens() int {
	if b.short() {
		return 50
	}
	return 500
}

// short reports whether this is a try of the bench and no measurement.
func (b *bench) short() bool { return b.Duration < time.Second }

func largestT(times map[string][]float64) float64 {
	largest := 0.0
	for a := range times {
		for b := range times {
			if a < b {
				largest = max(largest, math.Abs(welch(times[a], times[b])))
			}
		}
	}
	return largest
}

// welch is the statistic of Welch's t-test, of what lies below the 90th percentile:
// rare long times are the machine's and say nothing of the kinds.
func welch(a, b []float64) float64 {
	a, b = trim(a), trim(b)
	meanA, varianceA := moments(a)
	meanB, varianceB := moments(b)
	return quotient(meanA-meanB, math.Sqrt(varianceA/float64(len(a))+varianceB/float64(len(b))))
}

// trim leaves out the slowest tenth.
func trim(values []float64) []float64 {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[:len(sorted)*9/10]
}

func moments(values []float64) (mean, variance float64) {
	for _, value := range values {
		mean += value / float64(len(values))
	}
	for _, value := range values {
		variance += (value - mean) * (value - mean) / float64(len(values)-1)
	}
	return mean, variance
}

var errAnswered = errors.New("it should fail, and was answered")

// refused makes a request that must be answered 404.
func (c *connection) refused(request []byte) error {
	_, err := c.exchange(request)
	switch {
	case err == nil:
		return errAnswered
	case bytes.HasPrefix(c.in, []byte("HTTP/1.1 404 ")):
		return nil
	}
	return err
}
