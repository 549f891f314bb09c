package service_test

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"countersign/internal/fault"
	"countersign/internal/keyring"
	"countersign/internal/ledger"
	"countersign/internal/service"
	"countersign/internal/store"
	"countersign/internal/testdb"
	"countersign/internal/verify"
)

// unreadable is a store that cannot read one chain, and the head of one organization.
type unreadable struct {
	testdb.Store
	chain atomic.Pointer[ledger.ChainID] // nil for none
	gone  atomic.Bool                    // it can read no events at all
	org   atomic.Pointer[ledger.OrgID]   // nil for none
}

var errUnreadable = fmt.Errorf("a page of the file: %w: %w", store.ErrUnavailable, store.ErrDamaged)

// Chain implements store.Chains.
func (u *unreadable) Chain(ctx context.Context, id ledger.ChainID) (*store.ChainRecord, error) {
	if bad := u.chain.Load(); bad != nil && *bad == id {
		return nil, errUnreadable
	}
	return u.Store.Chain(ctx, id)
}

// Events implements store.Chains.
func (u *unreadable) Events(ctx context.Context, id ledger.ChainID, after int64, limit int) ([]*ledger.StoredEvent, error) {
	if bad := u.chain.Load(); u.gone.Load() || bad != nil && *bad == id {
		return nil, errUnreadable
	}
	return u.Store.Events(ctx, id, after, limit)
}

// Head implements store.Receipts.
func (u *unreadable) Head(ctx context.Context, id ledger.OrgID) (*ledger.Head, error) {
	if bad := u.org.Load(); bad != nil && *bad == id {
		return nil, errUnreadable
	}
	return u.Store.Head(ctx, id)
}

// rememberUnreadable is remember on a store of which a test can make a chain unreadable.
func rememberUnreadable(t *testing.T) (*remembering, *unreadable) {
	t.Helper()
	r := remember(t, testdb.SQLite(t))
	broken := &unreadable{Store: r.db.Open(t)}
	r.store = broken
	r.start()
	return r, broken
}

// rollBackSome opens three chains and rolls back those with these numbers.
func (r *remembering) rollBackSome(numbers ...int) []ledger.ChainID {
	r.t.Helper()
	chains := make([]ledger.ChainID, 3)
	for i := range chains {
		chains[i] = r.open(fmt.Sprint("work", i))
	}
	then := r.direct.copyOf(chainTables...)
	for _, i := range numbers {
		r.record(chains[i], step(r.t, "first", ""))
	}
	done(r.t, r.chains.Flush())
	r.direct.rollBack(then)
	return chains
}

// A chain that cannot be read does not keep others from being compared with what was acknowledged:
// those that were rolled back are reported, and an audit names them and says that it is incomplete.
//
//countersign:race
func TestUnreadableChainHidesNoOther(t *testing.T) {
	t.Parallel()
	r, broken := rememberUnreadable(t)
	chains := r.rollBackSome(0, 2)
	broken.chain.Store(&chains[1])
	rolledBack := func(what string, texts []string) {
		t.Helper()
		for _, i := range []int{0, 2} {
			name := (&verify.ChainRollback{Chain: chains[i]}).String()
			if !slices.Contains(texts, name) {
				t.Errorf("%s: chain %d is not among %q", what, i, texts)
			}
		}
	}

	if err := r.ProveChains(t.Context()); err == nil {
		t.Error("it was not said that a chain could not be read")
	}
	r.WaitForFindings()
	var texts []string
	for _, finding := range must[[]*service.Finding](t)(r.Operator().Findings(t.Context(), r.who.slug)) {
		texts = append(texts, finding.Subject)
	}
	rolledBack("the findings", texts)

	found, err := r.ChainRollbacks(t.Context())
	if err == nil {
		t.Error("it was not said that a chain could not be compared")
	}
	texts = nil
	for _, back := range found {
		texts = append(texts, back.String())
	}
	rolledBack("the rolled back chains", texts)

	report := must[*verify.AuditReport](t)(r.Operator().Audit(t.Context(), r.who.slug, verify.AuditOptions{}))
	texts = nil
	for _, found := range append(report.RolledBack, report.Break) {
		texts = append(texts, found.Detail)
	}
	rolledBack("the audit", texts)
	if !slices.Contains(report.NotChecked, string(ledger.CheckRollback)) {
		t.Errorf("the audit does not say that it is incomplete: %v", report.NotChecked)
	}
}

// A chain that cannot be read when an operator accepts its organization's chains is recorded as
// soon as it can be read.
//
//countersign:race
func TestUnreadableChainIsAcceptedLater(t *testing.T) {
	t.Parallel()
	r, broken := rememberUnreadable(t)
	chains := r.rollBackSome(0)
	found := must[[]*verify.ChainRollback](t)(r.ChainRollbacks(t.Context()))
	beside, err := keyring.OpenChains(r.journal, r.ring)
	done(t, err)
	done(t, r.Operator().AcceptChains(t.Context(), found, beside.Accept))
	done(t, r.chains.Reload())
	for _, step := range []struct {
		bad  *ledger.ChainID
		want int
	}{{&chains[1], 2}, {nil, 3}} {
		broken.chain.Store(step.bad)
		if err := r.ProveChains(t.Context()); (err != nil) != (step.bad != nil) {
			t.Errorf("error %v", err)
		}
		if remembered, _ := r.chains.Watched(); remembered != step.want {
			t.Errorf("%d chains are remembered, want %d", remembered, step.want)
		}
	}
}

// An organization whose ledger cannot be read does not keep others from being compared with what was
// acknowledged: those that were rolled back or are missing are found, and refused.
//
//countersign:race
func TestUnreadableLedgerHidesNoOther(t *testing.T) {
	t.Parallel()
	db := testdb.SQLite(t)
	w := watching(t, db, nil)
	tenants := make([]*tenant, 3)
	for i := range tenants {
		tenants[i] = newTenant(t, w.Service, fmt.Sprint("acme", i))
		done(t, w.seal(t, tenants[i]))
	}
	broken := &unreadable{Store: db.Open(t)}
	w.Service = serve(t, service.Config{Store: broken, Keys: w.ring, Watch: w.heads})
	for _, i := range []int{0, 2} {
		head := must[*ledger.Head](t)(db.Open(t).Head(t.Context(), tenants[i].id))
		done(t, w.seal(t, tenants[i]))
		rollBackReceipts(t, db, tenants[i], 1, head)
	}
	w.heads.Note([16]byte{0xff}, keyring.Seen{Count: 3, Last: [32]byte{3}, Slug: "gone"})
	broken.org.Store(&tenants[1].id)

	found, err := w.Rollbacks(t.Context())
	if err == nil {
		t.Error("it was not said that a ledger could not be read")
	}
	var names []string
	for _, rollback := range found {
		names = append(names, rollback.Organization)
	}
	if want := []string{"acme0", "acme2", "gone"}; !slices.Equal(names, want) {
		t.Errorf("found %v, want %v", names, want)
	}
	broken.org.Store(nil)
	checkCode(t, "sealing while an organization is missing", w.seal(t, tenants[1]), fault.CodeRolledBack)
}

// An abandoned chain that cannot be read does not keep others from being sealed. If the store cannot
// read any, the job fails and is repeated.
//
//countersign:race
func TestUnreadableChainHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	g := govern(t, testdb.SQLite(t))
	chains := make([]ledger.ChainID, 20)
	for i := range chains {
		chains[i] = g.open(fmt.Sprint("work", i))
		g.record(chains[i], step(t, "first", ""))
	}
	broken := &unreadable{Store: g.db.Open(t)}
	g.Service = g.over(broken)
	g.clock.Advance(73 * time.Hour)
	broken.gone.Store(true)
	if err := g.Jobs().Abandon(t.Context(), &service.Job{Org: g.who.id, Kind: service.JobAbandon}); codeOf(err) != fault.CodeUnavailable {
		t.Errorf("without the store: %v", err)
	}
	broken.gone.Store(false)
	broken.chain.Store(&chains[1])
	g.passRound(g.Service)
	broken.chain.Store(nil)
	for i, chain := range chains {
		if sealed := g.chainState(chain).Abandoned; sealed != (i != 1) {
			t.Errorf("chain %d is sealed: %t", i, sealed)
		}
	}
}
