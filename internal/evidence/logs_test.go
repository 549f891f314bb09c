package evidence

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/google/uuid"

	"countersign/internal/ledger"
	"countersign/internal/store"
	"countersign/internal/store/storetest"
)

// storedLog is a database with the audit log of one organization.
type storedLog struct {
	store.Store
	org  *ledger.Organization
	end  ledger.ActLog
	acts []*ledger.StoredAct
}

func newStoredLog(t *testing.T, acts int) *storedLog {
	t.Helper()
	org := &ledger.Organization{ID: ledger.OrgID{UUID: uuid.New()}, Slug: "acme", Settings: ledger.DefaultSettings()}
	if err := org.Seal(storetest.Ring{}); err != nil {
		t.Fatal(err)
	}
	db := &storedLog{org: org, end: *ledger.NewActLog(org.ID)}
	db.enter(t, acts, "before")
	return db
}

// enter appends acts of some other process.
func (db *storedLog) enter(t *testing.T, acts int, by string) {
	t.Helper()
	for i := range acts {
		act, err := db.end.Append(storetest.Ring{}, db.org, ledger.Act{Actor: ledger.ActorOperator, Action: "organization.update", Target: fmt.Sprint(by, i)})
		if err != nil {
			t.Fatal(err)
		}
		db.acts = append(db.acts, act)
	}
}

// copied returns a backup of the database.
func (db *storedLog) copied() *storedLog {
	backup := *db
	backup.acts = slices.Clone(db.acts)
	return &backup
}

func (db *storedLog) ActLog(context.Context, ledger.OrgID) (*ledger.ActLog, error) {
	end := db.end
	return &end, nil
}

func (db *storedLog) ActLogs(context.Context, []ledger.OrgID) (map[ledger.OrgID]*ledger.ActLog, error) {
	end := db.end
	return map[ledger.OrgID]*ledger.ActLog{db.org.ID: &end}, nil
}

func (db *storedLog) Acts(_ context.Context, _ ledger.OrgID, before int64, limit int) ([]*ledger.StoredAct, error) {
	var found []*ledger.StoredAct
	for _, act := range slices.Backward(db.acts) {
		if len(found) < limit && (before == 0 || act.Sequence < before) {
			found = append(found, act)
		}
	}
	return found, nil
}

func (db *storedLog) ScanActs(_ context.Context, _ ledger.OrgID, visit func(*ledger.StoredAct) error) error {
	for _, act := range db.acts {
		if err := visit(act); err != nil {
			return err
		}
	}
	return nil
}

func (db *storedLog) Transact(_ context.Context, _ *store.Needs, plan func(*store.Loaded) (*store.Changes, error)) error {
	end, locked := db.end, db.end
	_, err := plan(&store.Loaded{
		Orgs: map[ledger.OrgID]*ledger.Organization{db.org.ID: db.org},
		Ends: map[ledger.OrgID]*ledger.ActLog{db.org.ID: &end}, Logs: map[ledger.OrgID]*ledger.ActLog{db.org.ID: &locked},
		ActsAfter: func(_ ledger.OrgID, after int64, limit int) ([]*ledger.StoredAct, error) {
			rest := db.acts[max(after, 0):]
			return rest[:min(len(rest), limit)], nil
		},
	})
	return err
}

// behind reports whether a transaction of the store refuses the organization as rolled back, and
// whether it refuses it as tampered with.
func behind(t *testing.T, s *Store, org ledger.OrgID) (rolledBack, tampered bool) {
	t.Helper()
	err := s.Transact(t.Context(), &store.Needs{Orgs: []ledger.OrgID{org}}, func(loaded *store.Loaded) (*store.Changes, error) {
		rolledBack, tampered = slices.Contains(loaded.Behind, org), slices.Contains(loaded.Tampered, any(org))
		return nil, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return rolledBack, tampered
}

// A log that was put back is found as such however many acts others have entered since: fewer than
// were lost, as many, or more. The log leads to its end then, so nothing else shows it.
func TestLogsThatWerePutBackAndContinued(t *testing.T) {
	t.Parallel()
	for entered := range 6 {
		for _, first := range []string{"a check", "a transaction"} {
			t.Run(fmt.Sprint(entered, " acts, ", first), func(t *testing.T) {
				t.Parallel()
				db := newStoredLog(t, 4)
				backup := db.copied()
				db.enter(t, 2, "lost")
				s := New(db, storetest.Ring{})
				if rolledBack, tampered := behind(t, s, db.org.ID); rolledBack || tampered {
					t.Fatal("the log is refused as it is")
				}
				backup.enter(t, entered, "another")
				*db = *backup
				if first == "a transaction" {
					if rolledBack, _ := behind(t, s, db.org.ID); !rolledBack {
						t.Error("a transaction does not say that it was rolled back")
					}
				}
				if err := s.CheckLog(t.Context(), db.org.ID); !errors.Is(err, ErrRolledBack) {
					t.Errorf("the check of the log says %v", err)
				}
				if rolledBack, _ := behind(t, s, db.org.ID); !rolledBack {
					t.Error("a transaction after the check does not say that it was rolled back")
				}
			})
		}
	}
}

// A server continues with a log that was put back once an operator has accepted it, although
// accepting it enters acts, and the log may be longer then than the one that this server knew.
func TestLogsThatWereAccepted(t *testing.T) {
	t.Parallel()
	for entered := 1; entered < 6; entered++ {
		t.Run(fmt.Sprint(entered, " acts"), func(t *testing.T) {
			t.Parallel()
			db := newStoredLog(t, 4)
			backup := db.copied()
			db.enter(t, 2, "lost")
			known := db.end.End()
			s := New(db, storetest.Ring{})
			s.Remembered = func(ledger.OrgID) ledger.LogEnd { return known }
			if rolledBack, tampered := behind(t, s, db.org.ID); rolledBack || tampered {
				t.Fatal("the log is refused as it is")
			}
			*db = *backup
			if rolledBack, _ := behind(t, s, db.org.ID); !rolledBack {
				t.Error("the log that was put back is not refused")
			}
			db.enter(t, entered, "accepting")
			known = db.end.End()
			if failures, err := s.FollowLogs(t.Context()); err != nil || len(failures) > 0 {
				t.Errorf("following the accepted log: %v, %v", failures, err)
			}
			if rolledBack, tampered := behind(t, s, db.org.ID); rolledBack || tampered {
				t.Errorf("the accepted log is refused: rolled back %t, tampered %t", rolledBack, tampered)
			}
		})
	}
}

// An operator's acceptance counts also if this server had followed the log further than it was
// recorded outside the database, and the accepted log is as long as that record.
func TestAcceptedLogAsLongAsTheRecordOfAnother(t *testing.T) {
	t.Parallel()
	db := newStoredLog(t, 4)
	backup := db.copied()
	db.enter(t, 2, "lost")
	recorded := db.end.End()
	s := New(db, storetest.Ring{})
	s.Remembered = func(ledger.OrgID) ledger.LogEnd { return recorded }
	db.enter(t, 2, "another replica")
	if err := s.CheckLog(t.Context(), db.org.ID); err != nil {
		t.Fatal(err)
	}
	*db = *backup
	db.enter(t, 2, "accepting")
	recorded = db.end.End()
	if failures, err := s.FollowLogs(t.Context()); err != nil || len(failures) > 0 {
		t.Errorf("following the accepted log: %v, %v", failures, err)
	}
	if rolledBack, tampered := behind(t, s, db.org.ID); rolledBack || tampered {
		t.Errorf("the accepted log is refused: rolled back %t, tampered %t", rolledBack, tampered)
	}
}
