package service_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"countersign/internal/ledger"
	"countersign/internal/nightly"
	"countersign/internal/service"
	"countersign/internal/store"
	"countersign/internal/testdb"
)

// provenLedger has three sealed chains and a public link to the receipt of the second, whose chain has
// every kind of entry.
type provenLedger struct {
	*governed
	reads *readCounter
	link  string
}

// readCounter counts the reads of receipts and chains.
type readCounter struct {
	testdb.Store
	count   atomic.Int64
	damaged atomic.Bool // the last event of every chain is gone, and SQLite has not told of it
}

func (c *readCounter) PlacedReceipt(ctx context.Context, id ledger.ReceiptID) (*store.PlacedReceipt, error) {
	c.count.Add(1)
	return c.Store.PlacedReceipt(ctx, id)
}

func (c *readCounter) ActiveToken(ctx context.Context, hash [32]byte, now ledger.Time) (*store.ActiveToken, error) {
	token, err := c.Store.ActiveToken(ctx, hash, now)
	if err != nil {
		return nil, err
	}
	counted := *token
	counted.Receipt = func(ctx context.Context) (*store.PlacedReceipt, error) {
		c.count.Add(1)
		return token.Receipt(ctx)
	}
	return &counted, nil
}

func (c *readCounter) ChainRows(ctx context.Context, org ledger.OrgID, chain ledger.ChainID, limit int) (*store.ChainRows, error) {
	c.count.Add(1)
	rows, err := c.Store.ChainRows(ctx, org, chain, limit)
	if err == nil && c.damaged.Load() {
		short := *rows
		short.Events = rows.Events[:len(rows.Events)-1]
		return &short, nil
	}
	return rows, err
}

func newProvenLedger(t *testing.T, db *testdb.Database) *provenLedger {
	t.Helper()
	g := govern(t, db)
	l := &provenLedger{governed: g, reads: &readCounter{Store: g.store.(testdb.Store)}}
	l.Service = g.over(l.reads)
	var receipt ledger.ReceiptID
	for i := range 3 {
		id := l.sealOne(fmt.Sprintf("chain-%d", i))
		if i == 1 {
			receipt = id
		}
	}
	_, text, err := l.IssueToken(t.Context(), l.who.admin, &service.TokenRequest{Artifact: ledger.ArtifactReceipt, ArtifactID: receipt.UUID}, "")
	done(t, err)
	l.link = text.Reveal()
	return l
}

// sealOne seals a chain with events, a redaction, an approval and an outcome.
func (l *provenLedger) sealOne(name string) ledger.ReceiptID {
	l.t.Helper()
	chain := l.open(name)
	looked := l.record(chain, step(l.t, "look", "key-"+name))
	l.record(chain, request(l.t, ledger.ParseAction, `{"agent_name":"clerk","action_type":"tool_call","action_name":"note","payload":{"text":"hello"}}`))
	l.approve(l.ask(chain))
	must[*service.Outcome](l.t)(l.ReportOutcome(l.t.Context(), l.who.agent, chain, looked.Event.ID, &ledger.Entry{Result: ledger.Succeeded}))
	l.complete(chain)
	return must[*ledger.StoredReceipt](l.t)(l.ReceiptOfChain(l.t.Context(), l.who.agent, chain)).ID
}

// check follows the link with a service and returns the verdict, and how often it read a receipt or a
// chain.
func (l *provenLedger) check(s *service.Service) (overall string, reads int64) {
	l.t.Helper()
	l.reads.count.Store(0)
	v, err := s.VerifyToken(l.t.Context(), l.link)
	if err != nil {
		return err.Error(), l.reads.count.Load()
	}
	return string(v.Overall), l.reads.count.Load()
}

// expire makes verdicts that are reused for a short time too old for that.
func (l *provenLedger) expire() { l.clock.Advance(3 * time.Second) }

// While nobody else writes to the database, a receipt that was found in order is not read again,
// however much this process writes. After a commit of anybody else, after this process has found
// tampering or anchored something, and after a minute, it is.
func TestAProvenReceiptIsNotReadAgain(t *testing.T) {
	t.Parallel()
	for _, standing := range []ledger.AnchorStanding{ledger.AnchorPending, ledger.AnchorVerified} {
		t.Run(string(standing), func(t *testing.T) {
			t.Parallel()
			db := testdb.SQLite(t)
			l := newProvenLedger(t, db)
			expect := func(when string, read bool) {
				t.Helper()
				l.expire()
				overall, reads := l.check(l.Service)
				for try := 1; !read && reads > 0 && try < 20; try++ { // a commit of this process was under way
					overall, reads = l.check(l.Service)
				}
				if overall != string(ledger.Verified) || (reads > 0) != read {
					t.Errorf("%s it is %s, with %d reads", when, overall, reads)
				}
			}
			expect("at first,", true)
			expect("asked again,", false)
			l.sealOne("another")
			l.kill("stop")
			l.deactivateKillSwitch()
			expect("after other commits of this process,", false)
			tamper(t, db, `UPDATE tokens SET last_used_at = 1`) // which decides nothing
			expect("after a commit of somebody else,", true)
			expect("asked again after that,", false)
			l.NoteTampering(l.who.id, ledger.ErrStateTampered)
			l.WaitForFindings()
			expect("after a finding,", true)
			expect("asked again after the finding,", false)
			l.clock.Advance(time.Minute)
			expect("a minute later,", true)
			expect("asked again after the minute,", false)

			newest := must[[]*ledger.StoredReceipt](t)(l.store.Receipts(t.Context(), l.who.id, 0, 1))[0]
			done(t, l.Jobs().SaveAnchor(t.Context(), &ledger.Anchor{
				Org: l.who.id, Kind: ledger.SubjectHead, Subject: newest.ID.UUID, Sequence: newest.Sequence,
				Method: ledger.MethodTSA, Digest: newest.Hash(), Standing: standing,
			}))
			expect("anchored,", true)
			if v := must[*ledger.PublicVerification](t)(l.VerifyToken(t.Context(), l.link)); v.Anchors != standing {
				t.Errorf("anchored, its anchors are %s", v.Anchors)
			}
			expect("anchored and asked again,", true)
		})
	}
}

// A link does not contradict what a member was told: a chain that was found damaged is not proven,
// although nobody else has written.
func TestADamagedChainIsNotProven(t *testing.T) {
	t.Parallel()
	l := newProvenLedger(t, testdb.SQLite(t))
	for range 2 {
		l.expire()
		if overall, _ := l.check(l.Service); overall != string(ledger.Verified) {
			t.Fatalf("at first it is %s", overall)
		}
	}
	l.reads.damaged.Store(true)
	token := must[[]*store.TokenRecord](t)(l.Tokens(t.Context(), l.who.admin, nil, 1))[0]
	v := must[*ledger.Verification](t)(l.VerifyReceipt(t.Context(), l.who.admin, ledger.ReceiptID{UUID: token.ArtifactID}))
	if overall, _ := v.Conclude(); overall == ledger.Verified {
		t.Fatal("a member is told that the damaged chain is verified")
	}
	l.expire()
	if overall, _ := l.check(l.Service); overall == string(ledger.Verified) {
		t.Error("the link says verified")
	}
}

// A revoked token opens nothing, although its receipt is proven.
func TestAProvenReceiptNeedsAToken(t *testing.T) {
	t.Parallel()
	l := newProvenLedger(t, testdb.SQLite(t))
	for range 2 {
		l.expire()
		l.check(l.Service)
	}
	token := must[[]*store.TokenRecord](t)(l.Tokens(t.Context(), l.who.admin, nil, 1))[0]
	must[*store.TokenRecord](t)(l.RevokeToken(t.Context(), l.who.admin, token.ID, ""))
	if overall, _ := l.check(l.Service); overall == string(ledger.Verified) {
		t.Error("the link of a revoked token says verified")
	}
}

// A service that has proven a receipt says the same about it as one that knows nothing, whatever
// column of whatever row was changed since, and after it was changed back.
//
//countersign:race
func TestWhatIsProvenEndsWithAnyEdit(t *testing.T) {
	t.Parallel()
	db := testdb.SQLite(t)
	l := newProvenLedger(t, db)
	sc := l.scene()
	sc.direct = testdb.OpenSQL(t, "sqlite", db.Source+"&_pragma=synchronous(off)&_pragma=foreign_keys(0)&_pragma=ignore_check_constraints(1)")
	pristine := db.Path + ".pristine"
	done(t, l.store.Backup(t.Context(), pristine))
	done(t, sc.exec("ATTACH DATABASE ? AS pristine", pristine))
	found, edits, proven := 0, 0, 0
	for _, table := range []string{"receipts", "heads", "chains", "chain_states", "events", "addenda", "approvals", "tokens", "organizations"} {
		for _, r := range sc.rowsOf(table) {
			for i, column := range r.columns {
				others := mutations(r.values[i], nil)
				names := slices.Sorted(maps.Keys(others))
				for turn := range min(nightly.Count(2, len(names)), len(names)) {
					name := names[(edits+turn)%len(names)]
					for range 2 { // the second time it is proven
						l.expire()
						overall, reads := l.check(l.Service)
						if overall != string(ledger.Verified) {
							t.Fatalf("before the edit it is %s", overall)
						}
						if reads == 0 {
							proven++
						}
					}
					if sc.set(&r, column, others[name]) != nil {
						continue // the schema refuses it, or takes it for the same
					}
					edits++
					l.expire()
					warm, _ := l.check(l.Service)
					cold, _ := l.check(l.over(l.reads))
					if warm != cold {
						t.Errorf("%s.%s %s: it is %s, and for a service without caches %s", table, column, name, warm, cold)
					}
					if cold != string(ledger.Verified) {
						found++
					}
					sc.restore(table)
				}
			}
		}
	}
	if t.Logf("%d of %d edits end the verdict", found, edits); found < edits/4 || edits < 200 {
		t.Errorf("only %d of %d edits end it", found, edits)
	}
	if proven < edits*3/4 {
		t.Errorf("only %d of %d times it was proven before the edit", proven, edits)
	}
}
