package verify

import (
	"context"
	"testing"

	"github.com/google/uuid"

	"countersign/internal/evidence"
	"countersign/internal/keyring"
	"countersign/internal/ledger"
	"countersign/internal/store"
	"countersign/internal/store/storetest"
)

// storedLedger is a database with one receipt and an audit log.
type storedLedger struct {
	*growingLog
	receipt *store.PlacedReceipt
}

func (db *storedLedger) Head(context.Context, ledger.OrgID) (*ledger.Head, error) {
	return db.receipt.Head, nil
}

func (db *storedLedger) ScanReceipts(_ context.Context, _ ledger.OrgID, _, _ int64, visit func(*ledger.StoredReceipt) error) error {
	return visit(db.receipt.StoredReceipt)
}

func (db *storedLedger) Acts(context.Context, ledger.OrgID, int64, int) ([]*ledger.StoredAct, error) {
	return db.acts[len(db.acts)-1:], nil
}

func (db *storedLedger) Transact(_ context.Context, _ *store.Needs, plan func(*store.Loaded) (*store.Changes, error)) error {
	_, err := plan(&store.Loaded{Logs: map[ledger.OrgID]*ledger.ActLog{db.org.ID: db.end}})
	return err
}

// remembers is a watch that has seen one thing of every organization.
type remembers struct {
	HeadWatch
	seen keyring.Seen
}

func (r remembers) Seen(uuid.UUID) (keyring.Seen, bool) { return r.seen, true }

// A rollback says whether only the audit log differs from what was acknowledged, whatever the
// lengths are: a ledger of the same length may be another one, and so may a log.
func TestRollbacksOfTheAuditLogAlone(t *testing.T) {
	t.Parallel()
	db := &storedLedger{newGrowingLog(t, 2, 0), sealedAlone(t, 1)}
	receipts, acts := db.receipt.Hash(), db.end.End()
	other := [32]byte{1}
	for name, test := range map[string]struct {
		seen     keyring.Seen
		back     bool
		onlyActs bool
	}{
		"nothing":                              {keyring.Seen{Count: 1, Last: receipts, Acts: acts}, false, false},
		"other receipts":                       {keyring.Seen{Count: 1, Last: other, Acts: acts}, true, false},
		"fewer receipts":                       {keyring.Seen{Count: 2, Last: other, Acts: acts}, true, false},
		"a shorter log":                        {keyring.Seen{Count: 1, Last: receipts, Acts: ledger.LogEnd{Count: 3, Last: other}}, true, true},
		"a shorter log, and no receipt before": {keyring.Seen{Acts: ledger.LogEnd{Count: 3, Last: other}}, true, true},
		"another log":                          {keyring.Seen{Count: 1, Last: receipts, Acts: ledger.LogEnd{Count: 2, Last: other}}, true, true},
		"other receipts and a shorter log":     {keyring.Seen{Count: 1, Last: other, Acts: ledger.LogEnd{Count: 3, Last: other}}, true, false},
	} {
		s := evidence.New(db, storetest.Ring{})
		s.Remembered = func(ledger.OrgID) ledger.LogEnd { return test.seen.Acts }
		j := New(Config{Store: s, Keys: storetest.Ring{}, Watch: remembers{seen: test.seen}, Now: func() ledger.Time { return 1 }})
		found, err := j.Heads.rollback(t.Context(), db.org)
		if err != nil || (found != nil) != test.back {
			t.Errorf("%s: found %+v, %v", name, found, err)
		}
		if found != nil && found.OnlyActs() != test.onlyActs {
			t.Errorf("%s: only the audit log: %t", name, found.OnlyActs())
		}
	}
}
