package postgres

import (
	"cmp"
	"context"
	"slices"

	"github.com/google/uuid"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

const (
	findingColumns  = `org_id, name, failed_check, kind, subject, evidence, found_at, seen_at, acknowledged_at, acknowledged_by, reason, mac`
	selectFindings  = `select ` + findingColumns + ` from findings `
	loadFindingsSQL = selectFindings + `join unnest($1::uuid[], $2::text[]) n(org, key) on org_id = n.org and name = n.key`
	putFindingsSQL  = `insert into findings (` + findingColumns + `)
		select * from unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::text[], $6::bytea[], $7::bigint[], $8::bigint[], $9::bigint[],
			$10::text[], $11::text[], $12::bytea[])
		on conflict (org_id, name) do update set failed_check = excluded.failed_check, kind = excluded.kind, subject = excluded.subject,
			evidence = excluded.evidence, found_at = excluded.found_at, seen_at = excluded.seen_at, acknowledged_at = excluded.acknowledged_at,
			acknowledged_by = excluded.acknowledged_by, reason = excluded.reason, mac = excluded.mac`
)

func readFinding(r *row) *store.FindingRecord {
	return &store.FindingRecord{
		Org: ledger.OrgID{UUID: r.id()}, Name: r.text(), Check: r.text(), Kind: r.text(), Subject: r.text(), Evidence: r.bytes(),
		FoundAt: r.time(), SeenAt: r.time(), AcknowledgedAt: r.timeOrNil(), AcknowledgedBy: r.text(), Reason: r.text(), MAC: r.bytes(),
	}
}

// Finding implements store.Findings.
func (s *Store) Finding(ctx context.Context, ref store.FindingRef) (*store.FindingRecord, error) {
	return one(ctx, s, "finding", selectFindings+`where org_id = $1 and name = $2`, []any{bytesOf(ref.Org.UUID), ref.Name}, readFinding)
}

// Findings implements store.Findings.
func (s *Store) Findings(ctx context.Context, after store.FindingRef, limit int) ([]*store.FindingRecord, error) {
	return list(ctx, s, "findings", selectFindings+`where (org_id, name) > ($1, $2) order by org_id, name limit $3`,
		[]any{bytesOf(after.Org.UUID), after.Name, limit}, readFinding)
}

func askFindings(x *exchange, needs *store.Needs, loaded *store.Loaded) {
	loaded.Findings = make(map[store.FindingRef]*store.FindingRecord)
	if findings := distinct(needs.Findings); len(findings) > 0 {
		ask(x, loadFindingsSQL, readFinding, func(f *store.FindingRecord) { loaded.Findings[f.Ref()] = f },
			ids(findings, func(f store.FindingRef) uuid.UUID { return f.Org.UUID }),
			texts(findings, func(f store.FindingRef) string { return f.Name }))
	}
}

// sendFindings writes in order of name, so that two writers do not wait for each other.
func sendFindings(x *exchange, findings []*store.FindingRecord) {
	if len(findings) == 0 {
		return
	}
	findings = slices.SortedFunc(slices.Values(findings), func(a, b *store.FindingRecord) int {
		return cmp.Or(slices.Compare(a.Org.UUID[:], b.Org.UUID[:]), cmp.Compare(a.Name, b.Name))
	})
	x.send(putFindingsSQL,
		ids(findings, func(f *store.FindingRecord) uuid.UUID { return f.Org.UUID }),
		texts(findings, func(f *store.FindingRecord) string { return f.Name }),
		texts(findings, func(f *store.FindingRecord) string { return f.Check }),
		texts(findings, func(f *store.FindingRecord) string { return f.Kind }),
		texts(findings, func(f *store.FindingRecord) string { return f.Subject }),
		blobs(findings, func(f *store.FindingRecord) []byte { return filled(f.Evidence) }),
		ints(findings, func(f *store.FindingRecord) int64 { return int64(f.FoundAt) }),
		ints(findings, func(f *store.FindingRecord) int64 { return int64(f.SeenAt) }),
		intsOrNull(findings, func(f *store.FindingRecord) *ledger.Time { return f.AcknowledgedAt }),
		texts(findings, func(f *store.FindingRecord) string { return f.AcknowledgedBy }),
		texts(findings, func(f *store.FindingRecord) string { return f.Reason }),
		blobs(findings, func(f *store.FindingRecord) []byte { return filled(f.MAC) }))
}
