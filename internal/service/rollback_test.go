package service_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"countersign/internal/fault"
	"countersign/internal/keyring"
	"countersign/internal/ledger"
	"countersign/internal/service"
	"countersign/internal/servicetest"
	"countersign/internal/testdb"
	"countersign/internal/verify"
)

// watched is a service with a memory outside its database.
type watched struct {
	*service.Service
	ring  *keyring.Ring
	heads *keyring.Heads
}

// watching starts a service on a database. Its memory may be shared with another.
func watching(t *testing.T, db *testdb.Database, of *watched) *watched {
	t.Helper()
	w := &watched{}
	if of == nil {
		w.ring, _ = servicetest.NewRing(t)
		heads, err := keyring.OpenHeads(filepath.Join(t.TempDir(), "heads.json"), w.ring)
		done(t, err)
		w.heads = heads
	} else {
		w.ring, w.heads = of.ring, of.heads
	}
	w.Service = serve(t, service.Config{Store: db.Open(t), Keys: w.ring, Watch: w.heads})
	if of == nil {
		done(t, w.Operator().AdoptLedger(t.Context(), w.heads))
	}
	return w
}

func (w *watched) seal(t *testing.T, who *tenant) error {
	t.Helper()
	chain := must[*service.ChainView](t)(w.OpenChain(t.Context(), who.agent, chainNamed(t, "sealed"), ""))
	_, err := w.CompleteChain(t.Context(), who.agent, chain.ID, &ledger.Completion{})
	return err
}

// found compares the rollbacks found with the expected ones, except for their ids.
func (w *watched) found(t *testing.T, want ...verify.Rollback) []verify.Rollback {
	t.Helper()
	found := must[[]verify.Rollback](t)(w.Rollbacks(t.Context()))
	if diff := cmp.Diff(want, found, cmpopts.EquateEmpty(), cmpopts.IgnoreUnexported(verify.Rollback{}), cmpopts.IgnoreFields(verify.Rollback{}, "ID", "ActsAcknowledged", "ActsStored")); diff != "" {
		t.Fatalf("rollbacks (-want +got):\n%s", diff)
	}
	return found
}

// A database that lacks a whole organization is treated like one that lacks the last receipt:
// nothing is sealed in it, for anyone, until an operator accepts it.
func TestOrganizationsThatAreMissing(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		first := watching(t, db, nil)
		acme, gone := newTenant(t, first.Service, "acme"), newTenant(t, first.Service, "gone")
		for range 2 {
			done(t, first.seal(t, acme))
			done(t, first.seal(t, gone))
		}
		first.found(t)
		checkIntact(t, first.Service, "acme", 2)

		second := watching(t, db.Fresh(t), first)
		local := newTenant(t, second.Service, "acme") // of the same name, and another
		missing := second.found(t,
			verify.Rollback{Organization: "acme", Acknowledged: 2, Missing: true},
			verify.Rollback{Organization: "gone", Acknowledged: 2, Missing: true})
		if missing[0].ID != acme.id.UUID || missing[1].ID != gone.id.UUID {
			t.Errorf("missing are %s and %s", missing[0].ID, missing[1].ID)
		}
		checkCode(t, "sealing", second.seal(t, local), fault.CodeRolledBack)
		checkIntact(t, second.Service, "acme", 0)

		done(t, second.Operator().AcceptRollbacks(t.Context(), missing[:1], first.heads.Accept))
		second.found(t, verify.Rollback{Organization: "gone", Acknowledged: 2, Missing: true})
		checkCode(t, "sealing while one is missing", second.seal(t, local), fault.CodeRolledBack)
		done(t, second.Operator().AcceptRollbacks(t.Context(), missing[1:], first.heads.Accept))
		done(t, second.seal(t, local)) // at once: nobody has looked again
		second.found(t)
		checkIntact(t, second.Service, "acme", 1)
		second.checkEntered(t, local, `"organizations_missing":1`, acme.id.String(), gone.id.String(), "gone")
	})
}

// checkEntered expects the acceptance in an organization's log, without certain words.
func (w *watched) checkEntered(t *testing.T, who *tenant, says string, never ...string) {
	t.Helper()
	acts := must[[]*ledger.StoredAct](t)(w.Acts(t.Context(), who.admin, 0, 10))
	newest := string(acts[0].Body)
	if !strings.Contains(newest, `"rollback.accept"`) || !strings.Contains(newest, says) {
		t.Errorf("the newest act is %s", newest)
	}
	for _, word := range never {
		if strings.Contains(newest, word) {
			t.Errorf("the log of %s names %s", who.slug, word)
		}
	}
}

// When the right database is restored, there is nothing left to accept.
func TestMissingOrganizationsThatComeBack(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		first := watching(t, db, nil)
		acme, rival := newTenant(t, first.Service, "acme"), newTenant(t, first.Service, "rival")
		done(t, first.seal(t, acme))
		stranger := ledger.OrgID{UUID: acme.id.UUID}
		stranger.UUID[0] ^= 0xff
		first.heads.Note(stranger.UUID, keyring.Seen{Count: 3, Last: [32]byte{3}})
		missing := first.found(t, verify.Rollback{Organization: stranger.String(), Acknowledged: 3, Missing: true})
		for _, who := range []*tenant{acme, rival} {
			checkCode(t, "sealing for "+who.slug, first.seal(t, who), fault.CodeRolledBack)
		}
		done(t, first.Operator().AcceptRollbacks(t.Context(), missing, first.heads.Accept))
		for _, who := range []*tenant{acme, rival} {
			first.checkEntered(t, who, `"organizations_missing":1`, stranger.String())
			done(t, first.seal(t, who))
		}
		first.found(t)
	})
}

// A ledger that was rolled back takes no receipts until an operator accepts it, and others are not
// affected.
func TestOlderLedgersAreAcceptedOneByOne(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		w := watching(t, db, nil)
		acme, rival := newTenant(t, w.Service, "acme"), newTenant(t, w.Service, "rival")
		done(t, w.seal(t, acme))
		done(t, w.seal(t, rival))
		w.heads.Note(acme.id.UUID, keyring.Seen{Count: 5, Last: [32]byte{5}})
		older := w.found(t, verify.Rollback{Organization: "acme", Acknowledged: 5, Stored: 1})
		checkCode(t, "sealing", w.seal(t, acme), fault.CodeRolledBack)
		done(t, w.seal(t, rival))
		done(t, w.Operator().AcceptRollbacks(t.Context(), older, w.heads.Accept))
		w.checkEntered(t, acme, `"receipts_acknowledged":5,"receipts_stored":1`)
		done(t, w.seal(t, acme))
		w.found(t)
	})
}

// Receipts and organizations that are created during a check for rollbacks are not mistaken for a
// rollback.
//
//countersign:race
func TestLookingBackWhileReceiptsAreSealed(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		w := watching(t, db, nil)
		const makers, each = 3, 8
		var running sync.WaitGroup
		for maker := range makers {
			running.Go(func() {
				for n := range each {
					who := newTenant(t, w.Service, fmt.Sprintf("org-%d-%d", maker, n))
					if err := w.seal(t, who); err != nil {
						t.Error(err)
					}
				}
			})
		}
		sealed := make(chan struct{})
		go func() { running.Wait(); close(sealed) }()
		for looking := true; looking; {
			select {
			case <-sealed:
				looking = false
			default:
			}
			w.found(t)
		}
	})
}
