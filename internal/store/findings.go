package store

import (
	"context"

	"countersign/internal/ledger"
)

// Findings keeps the tampering that the service knows of. They are changed by Transact
// alone and never deleted.
type Findings interface {
	Finding(ctx context.Context, ref FindingRef) (*FindingRecord, error)
	// Findings lists those of every organization, by organization and name, after the
	// given one. Organizations that are gone are no exception.
	Findings(ctx context.Context, after FindingRef, limit int) ([]*FindingRecord, error)
}

// FindingRef names a finding.
type FindingRef struct {
	Org  ledger.OrgID // zero: it concerns no organization in particular
	Name string
}

// FindingRecord is tampering that was found. It refers to no other record: those may
// be gone.
type FindingRecord struct {
	Org            ledger.OrgID
	Name           string // unique in its organization
	Check          string // that failed
	Kind           string // of what it is about: "receipt", "approval" or "place"
	Subject        string // the receipt's or approval's id, or the place
	Evidence       []byte // digest of what was found
	FoundAt        ledger.Time
	SeenAt         ledger.Time  // last, to within a day
	AcknowledgedAt *ledger.Time // nil while it is open
	AcknowledgedBy string
	Reason         string // given with the acknowledgement
	MAC            []byte // authenticates all of it

	// Tampered says that the row fails its authenticator. A store leaves it unset.
	Tampered bool
}

// Ref is the finding's name.
func (f *FindingRecord) Ref() FindingRef { return FindingRef{Org: f.Org, Name: f.Name} }

// Open reports whether nobody has acknowledged the finding.
func (f *FindingRecord) Open() bool { return f.Tampered || f.AcknowledgedAt == nil }
