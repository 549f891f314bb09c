package service_test

import (
	"errors"
	"path/filepath"
	"testing"

	"github.com/google/uuid"

	"countersign/internal/fault"
	"countersign/internal/keyring"
	"countersign/internal/service"
	"countersign/internal/testdb"
	"countersign/internal/verify"
)

// memoryOf returns a new memory with the keys of another.
func memoryOf(t *testing.T, w *watched) *keyring.Heads {
	t.Helper()
	heads, err := keyring.OpenHeads(filepath.Join(t.TempDir(), "heads.json"), w.ring)
	done(t, err)
	return heads
}

func wantRolledBack(t *testing.T, err error) {
	t.Helper()
	var own *fault.Error
	if !errors.As(err, &own) || own.Code != fault.CodeRolledBack {
		t.Errorf("sealing: %v", err)
	}
}

// A server that finds another ledger in its database seals nothing from its next check on, for any
// organization, until the operator accepts it.
//
//countersign:race
func TestLedgerThatBecomesAnother(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		w := watching(t, db, nil)
		done(t, w.Operator().AdoptLedger(t.Context(), w.heads))
		acme := newTenant(t, w.Service, "acme")
		done(t, w.seal(t, acme))
		before := must[*service.LedgerIdentity](t)(w.Ledger(t.Context()))
		w.found(t)

		other := watching(t, db, w)
		restored := must[*service.Restoration](t)(other.Operator().Restore(t.Context(), before.ID, w.heads.All()))
		if restored.Parent == nil || *restored.Parent != before.ID || len(restored.Organizations) != 1 || restored.Organizations[0].ReceiptsLost != 0 {
			t.Errorf("restored is %+v", restored)
		}
		found := w.found(t, verify.Rollback{OtherLedger: true})
		wantRolledBack(t, w.seal(t, acme))
		if err := w.Operator().AdoptLedger(t.Context(), w.heads); !errors.Is(err, keyring.ErrOtherLedger) {
			t.Errorf("a server would start: %v", err)
		}
		done(t, w.Operator().AcceptRollbacks(t.Context(), found, w.heads.Accept))
		done(t, w.heads.AcceptLedger(must[*service.LedgerIdentity](t)(w.Operator().AcceptLedger(t.Context(), before.ID)).ID))
		done(t, w.seal(t, acme))
		w.found(t)
	})
}

// An empty memory adopts a ledger without receipts, but none that has any: not even if the head
// was deleted, or restored to before the first receipt.
//
//countersign:race
func TestMemoryOfNothing(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		w := watching(t, db, nil)
		acme := newTenant(t, w.Service, "acme")
		direct := db.Direct(t)
		exec := func(statement string) {
			t.Helper()
			_, err := direct.ExecContext(t.Context(), statement)
			done(t, err)
		}
		exec("CREATE TABLE kept AS SELECT * FROM heads")
		done(t, w.Operator().AdoptLedger(t.Context(), w.heads))
		if w.heads.Blank() {
			t.Fatal("a ledger without receipts is not watched")
		}
		done(t, w.seal(t, acme))
		for _, change := range []string{"", "UPDATE heads SET count = 0, last_hash = kept.last_hash, mac = kept.mac FROM kept", "DELETE FROM heads"} {
			if change != "" {
				exec(change)
			}
			memory := memoryOf(t, w)
			blank := &watched{ring: w.ring, heads: memory, Service: serve(t, service.Config{Store: db.Open(t), Keys: w.ring, Watch: memory})}
			done(t, blank.Operator().AdoptLedger(t.Context(), memory))
			if found := must[[]verify.Rollback](t)(blank.Rollbacks(t.Context())); len(found) != 1 || !found[0].Unremembered {
				t.Errorf("after %q: found is %+v", change, found)
			}
			if !memory.Blank() || memory.Ledger() != uuid.Nil {
				t.Errorf("after %q: the memory vouches for the ledger", change)
			}
			if err := blank.seal(t, acme); err == nil {
				t.Errorf("after %q: it is sealed", change)
			}
		}
		exec("DROP TABLE kept")
	})
}
