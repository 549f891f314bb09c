package service_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"countersign/internal/ledger"
	"countersign/internal/nightly"
	"countersign/internal/service"
	"countersign/internal/store"
	"countersign/internal/testdb"
	"countersign/internal/verify"
)

// shortened is a random history of governed chains, and what was acknowledged of it.
type shortened struct {
	*remembering
	chance  *rand.Rand
	open    []ledger.ChainID
	actions map[ledger.ChainID]int64 // acknowledged
	waiting map[ledger.ChainID][]ledger.ApprovalID
	past    []tables
}

// Whatever happened to a few chains, and whichever of their tables are restored to whichever
// earlier state: no chain that is shorter than what was acknowledged is sealed or continued,
// neither by a running server nor by a restarted one, and an audit names each chain whose state is
// not the newest.
//
//countersign:race twice
func TestNothingShorterThanAcknowledged(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		seed := uint64(time.Now().UnixNano())
		t.Logf("seed %d", seed)
		for n := range nightly.Count(12, 2000) / (1 + 3*racing) {
			passed := t.Run(fmt.Sprint(n), func(t *testing.T) {
				h := &shortened{
					remembering: remember(t, db.Fresh(t)), chance: rand.New(rand.NewPCG(seed, uint64(n))),
					actions: make(map[ledger.ChainID]int64), waiting: make(map[ledger.ChainID][]ledger.ApprovalID),
				}
				h.past = append(h.past, h.direct.copyOf(h.tables()...))
				for range 10 + h.chance.IntN(25) {
					h.step()
					if h.chance.IntN(4) == 0 {
						h.past = append(h.past, h.direct.copyOf(h.tables()...))
					}
				}
				h.attack()
			})
			if !passed {
				t.Fatalf("history %d of seed %d", n, seed)
			}
		}
	})
}

func (h *shortened) tables() []string {
	return append([]string{"chains", "chain_polls"}, chainTables...)
}

func (h *shortened) pick() (ledger.ChainID, bool) {
	if len(h.open) == 0 {
		return ledger.ChainID{}, false
	}
	return h.open[h.chance.IntN(len(h.open))], true
}

func (h *shortened) step() {
	h.t.Helper()
	chain, ok := h.pick()
	switch kind := h.chance.IntN(12); {
	case !ok || kind == 0 && len(h.open) < 4:
		chain = h.remembering.open(fmt.Sprint("chain-", len(h.actions)))
		h.open, h.actions[chain] = append(h.open, chain), 0
	case kind < 5:
		h.acknowledged(chain, h.record(chain, step(h.t, "step", "")))
	case kind < 7:
		h.acknowledged(chain, h.record(chain, payment(h.t, 3000, "")))
	case kind == 7:
		h.acknowledged(chain, h.record(chain, payment(h.t, gatedAmount, "")))
	case kind == 8 && len(h.waiting[chain]) > 0:
		done(h.t, h.decide(h.who.member, h.waiting[chain][0], h.chance.IntN(2) == 0))
		h.waiting[chain] = h.waiting[chain][1:]
	case kind == 9:
		done(h.t, h.chains.Flush())
	case kind == 10:
		done(h.t, h.ProveChains(h.t.Context()))
	case kind == 11:
		h.complete(chain)
		h.closed(chain)
	}
}

func (h *shortened) acknowledged(chain ledger.ChainID, recorded *service.Recorded) {
	h.t.Helper()
	h.actions[chain]++
	if recorded.Event.Sequence != h.actions[chain] {
		h.t.Errorf("event %d of the chain %s is recorded, %d were acknowledged", recorded.Event.Sequence, chain, h.actions[chain])
	}
	if id := recorded.Event.Approval; id != (ledger.ApprovalID{}) {
		h.waiting[chain] = append(h.waiting[chain], id)
	}
}

func (h *shortened) closed(chain ledger.ChainID) {
	h.open = slices.DeleteFunc(h.open, func(c ledger.ChainID) bool { return c == chain })
}

// attack restores some tables to an earlier state, and then sends requests.
func (h *shortened) attack() {
	h.t.Helper()
	done(h.t, h.chains.Flush())
	newest := h.states()
	then, back := h.past[h.chance.IntN(len(h.past))], make(tables)
	for table, rows := range then {
		if h.chance.IntN(3) > 0 {
			back[table] = rows
		}
	}
	h.direct.rollBack(back)
	if h.chance.IntN(2) == 0 {
		h.start()
	}
	moved := h.moved(newest)
	report, err := h.Operator().Audit(h.t.Context(), h.who.slug, verify.AuditOptions{})
	done(h.t, err)
	named := fmt.Sprint(report.Break)
	for _, found := range report.RolledBack {
		named += fmt.Sprint(found)
	}
	for chain := range moved {
		if !strings.Contains(named, chain.String()) {
			h.t.Errorf("the state of the chain %s was rolled back, and the audit finds %s", chain, named)
		}
	}
	for range 12 {
		if chain, ok := h.pick(); ok {
			h.attempt(chain, moved[chain])
		}
	}
}

// attempt sends one request about a chain that may have been rolled back.
func (h *shortened) attempt(chain ledger.ChainID, moved bool) {
	h.t.Helper()
	ctx := h.t.Context()
	switch h.chance.IntN(3) {
	case 0:
		recorded, err := h.RecordEvent(ctx, h.who.agent, chain, payment(h.t, 3000, ""))
		if err == nil {
			h.acknowledged(chain, recorded)
		}
		h.refused("an event", chain, moved, err)
	case 1:
		if len(h.waiting[chain]) > 0 {
			h.refused("a decision", chain, moved, h.decide(h.who.member, h.waiting[chain][0], true))
		}
	case 2:
		completed, err := h.CompleteChain(ctx, h.who.agent, chain, &ledger.Completion{})
		if err == nil {
			if completed.State.Actions != h.actions[chain] {
				h.t.Errorf("the chain %s is sealed with %d actions, %d were acknowledged", chain, completed.State.Actions, h.actions[chain])
			}
			h.closed(chain)
		}
		h.refused("a completion", chain, moved, err)
	}
}

// refused expects requests about a chain that was rolled back to be refused.
func (h *shortened) refused(what string, chain ledger.ChainID, moved bool, err error) {
	h.t.Helper()
	if moved && err == nil {
		h.t.Errorf("the state of the chain %s was rolled back, and %s is taken", chain, what)
	}
}

// states returns the authenticators of the newest states.
func (h *shortened) states() map[ledger.ChainID]string {
	h.t.Helper()
	states := make(map[ledger.ChainID]string)
	for _, chain := range h.open {
		states[chain] = string(must[*store.ChainRecord](h.t)(h.store.Chain(h.t.Context(), chain)).MAC)
	}
	return states
}

// moved returns the chains whose newest state is no longer stored.
func (h *shortened) moved(newest map[ledger.ChainID]string) map[ledger.ChainID]bool {
	h.t.Helper()
	stored := h.direct.copyOf("chain_states")["chain_states"]
	moved := make(map[ledger.ChainID]bool)
	for chain, state := range newest {
		if !slices.ContainsFunc(stored, func(r row) bool { return string(r.value("mac").([]byte)) == state }) {
			moved[chain] = true
		}
	}
	return moved
}
