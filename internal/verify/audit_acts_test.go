package verify

import (
	"context"
	"testing"

	"github.com/google/uuid"

	"countersign/internal/evidence"
	"countersign/internal/ledger"
	"countersign/internal/store"
	"countersign/internal/store/storetest"
)

// growingLog is a database with an audit log that grows by an act each time its end was read, until
// it has the given length.
type growingLog struct {
	store.Store
	t    *testing.T
	org  *ledger.Organization
	end  *ledger.ActLog
	acts []*ledger.StoredAct
	most int64
}

func newGrowingLog(t *testing.T, acts int, most int64) *growingLog {
	t.Helper()
	org := &ledger.Organization{ID: ledger.OrgID{UUID: uuid.New()}, Slug: "acme", Settings: ledger.DefaultSettings()}
	if err := org.Seal(storetest.Ring{}); err != nil {
		t.Fatal(err)
	}
	db := &growingLog{t: t, org: org, end: ledger.NewActLog(org.ID), most: most}
	for range acts {
		db.enter(ledger.ActTamperingFound)
	}
	return db
}

func (db *growingLog) enter(action string) {
	act, err := db.end.Append(storetest.Ring{}, db.org, ledger.Act{Actor: ledger.ActorService, Action: action, Target: "one"})
	if err != nil {
		db.t.Fatal(err)
	}
	db.acts = append(db.acts, act)
}

func (db *growingLog) ActLog(context.Context, ledger.OrgID) (*ledger.ActLog, error) {
	end := *db.end
	if db.end.Count < db.most {
		db.enter(ledger.ActTamperingAcknowledge)
	}
	return &end, nil
}

func (db *growingLog) ScanActs(_ context.Context, _ ledger.OrgID, visit func(*ledger.StoredAct) error) error {
	for _, act := range db.acts {
		if err := visit(act); err != nil {
			return err
		}
	}
	return nil
}

func (db *growingLog) Organization(context.Context, ledger.OrgID) (*ledger.Organization, error) {
	return db.org, nil
}

func (db *growingLog) Policies(context.Context, ledger.OrgID, int64, int) ([]*store.PolicyRecord, error) {
	return nil, nil
}

func (db *growingLog) Finding(ctx context.Context, ref store.FindingRef) (*store.FindingRecord, error) {
	finding := &store.FindingRecord{Org: ref.Org, Name: ref.Name}
	if db.end.Count > 4 {
		finding.AcknowledgedAt = new(ledger.Time)
	}
	sealed := &store.Changes{Findings: []*store.FindingRecord{finding}}
	return finding, evidence.New(sealing{db}, storetest.Ring{}).CreateOrganization(ctx, nil, nil, sealed)
}

func (db *growingLog) Findings(context.Context, store.FindingRef, int) ([]*store.FindingRecord, error) {
	return nil, nil
}

// sealing is a database that takes everything, to have rows sealed.
type sealing struct{ store.Store }

func (sealing) CreateOrganization(context.Context, *ledger.Organization, *ledger.Head, *store.Changes) error {
	return nil
}

// A self-check reads a bounded number of acts. An audit log that outgrows the bound while it is read
// is not tampered with: from then on it is left to the audit.
func TestLogsThatOutgrowTheSelfCheck(t *testing.T) {
	t.Parallel()
	for name, inspect := range map[string]func(c *check) (*ledger.Break, error){
		"the log":      func(c *check) (*ledger.Break, error) { return c.boundedLog(t.Context()) },
		"the findings": func(c *check) (*ledger.Break, error) { return c.inspectFindings(t.Context()) },
	} {
		for most := int64(4); most < 8; most++ {
			db := newGrowingLog(t, 4, most)
			j := New(Config{Store: evidence.New(db, storetest.Ring{}), Keys: storetest.Ring{}, Now: func() ledger.Time { return 1 }})
			c := &check{audit: j.newAudit(db.org)}
			c.maxActs = 4
			if found, err := inspect(c); found != nil || err != nil {
				t.Errorf("%s of %d acts: found %+v, %v", name, most, found, err)
			}
		}
	}
}

// What an operator has accepted or restored may lack votes that the audit log names.
func TestAcceptedApprovalsMayLackVotes(t *testing.T) {
	t.Parallel()
	for action, kept := range map[string]int{ledger.ActRollbackAccept: 0, ledger.ActLedgerRestore: 0, ledger.ActOrganizationUpdate: 1} {
		walked := &walkedActs{votes: make(map[string][]ledger.KeyID)}
		walked.noteVote(&ledger.Act{Action: ledger.ActApprovalApprove, Target: "one", Detail: []byte(`{"status":{"from":"pending","to":"pending"}}`)})
		walked.noteVote(&ledger.Act{Action: action})
		if len(walked.votes) != kept {
			t.Errorf("%s: %d approvals with votes, want %d", action, len(walked.votes), kept)
		}
	}
}
