package service_test

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"

	"countersign/internal/keyring"
	"countersign/internal/ledger"
	"countersign/internal/service"
	"countersign/internal/store"
	"countersign/internal/testdb"
	"countersign/internal/verify"
)

// unreadable is a store that cannot read one chain.
type unreadable struct {
	testdb.Store
	chain atomic.Pointer[ledger.ChainID] // nil for none
}

var errUnreadable = fmt.Errorf("a page of the file: %w: %w", store.ErrUnavailable, store.ErrDamaged)

// Chain implements store.Chains.
func (u *unreadable) Chain(ctx context.Context, id ledger.ChainID) (*store.ChainRecord, error) {
	if bad := u.chain.Load(); bad != nil && *bad == id {
		return nil, errUnreadable
	}
	return u.Store.Chain(ctx, id)
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

// A chain that cannot be read does not keep others from being compared with what was acknowledged:
// those that were rolled back are reported, and an audit names them and says that it is incomplete.
//
//countersign:race
func TestUnreadableChainHidesNoOther(t *testing.T) {
	t.Parallel()
	r, broken := rememberUnreadable(t)
	chains := make([]ledger.ChainID, 3)
	for i := range chains {
		chains[i] = r.open(fmt.Sprint("work", i))
	}
	then := r.direct.copyOf(chainTables...)
	for _, i := range []int{0, 2} {
		r.record(chains[i], step(t, "first", ""))
	}
	done(t, r.chains.Flush())
	r.direct.rollBack(then)
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
	chains := make([]ledger.ChainID, 3)
	for i := range chains {
		chains[i] = r.open(fmt.Sprint("work", i))
	}
	then := r.direct.copyOf(chainTables...)
	r.record(chains[0], step(t, "first", ""))
	done(t, r.chains.Flush())
	r.direct.rollBack(then)
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
