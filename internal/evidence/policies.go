package evidence

import (
	"fmt"

	"countersign/internal/canon"
	"countersign/internal/ledger"
	"countersign/internal/policy"
	"countersign/internal/store"
)

// ActPutPolicy is what the audit log calls the putting of a policy set.
const ActPutPolicy = "policy.put"

// PolicyDetail is what the audit log says of a stored set: it binds every byte of it.
func PolicyDetail(record *store.PolicyRecord) []byte {
	w := canon.BeginObject(nil)
	w.String("format", record.Format)
	w.String("sha256", ledger.PayloadHash(record.Document))
	return w.End()
}

// ReadPolicy compiles a stored set and refuses one whose bytes are not those that
// its version names.
func ReadPolicy(record *store.PolicyRecord) (*policy.Set, error) {
	format := policy.JSON
	if record.Format == "yaml" {
		format = policy.YAML
	}
	set, err := policy.Parse(record.Document, format)
	if err != nil {
		return nil, fmt.Errorf("stored policy set %s: %w: %w", record.Version, ledger.ErrStateTampered, err)
	}
	if ledger.PolicyVersion(record.Number, set.Canonical()) != record.Version {
		return nil, fmt.Errorf("stored policy set %s: %w", record.Version, ledger.ErrStateTampered)
	}
	return set, nil
}
