package postgres

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/google/uuid"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

const (
	selectApprovals = `select ` + approvalColumns + ` from approvals `
	selectPolicies  = `select ` + policyColumns + ` from policies `
	selectActs      = `select ` + actColumns + ` from acts `
	policySQL       = selectPolicies + `where org_id = $1 and number = $2`
)

// Approval implements store.Governance.
func (s *Store) Approval(ctx context.Context, id ledger.ApprovalID) (*store.ApprovalRecord, error) {
	return one(ctx, s, "approval", selectApprovals+`where id = $1`, []any{bytesOf(id.UUID)}, readApproval)
}

// Approvals implements store.Governance.
func (s *Store) Approvals(ctx context.Context, query store.ApprovalQuery) ([]*store.ApprovalRecord, error) {
	sql, args := approvalsStatement(query)
	return list(ctx, s, "approvals", sql, args, readApproval)
}

// organizationsWithApprovalsSQL looks for one approval of each organization. "limit 1" keeps the
// planner from reading all approvals for a join.
const organizationsWithApprovalsSQL = `select id from organizations, lateral (select 1 from approvals where org_id = organizations.id limit 1) found`

// OrganizationsWithApprovals implements store.Governance.
func (s *Store) OrganizationsWithApprovals(ctx context.Context) ([]ledger.OrgID, error) {
	return list(ctx, s, "organizations with approvals", organizationsWithApprovalsSQL, nil, func(r *row) ledger.OrgID { return ledger.OrgID{UUID: r.id()} })
}

// approvalsStatement includes only the filters that are set, like chainsStatement.
func approvalsStatement(query store.ApprovalQuery) (string, []any) {
	var sql strings.Builder
	sql.WriteString(selectApprovals + "where org_id = $1")
	args := []any{bytesOf(query.Org.UUID)}
	filter := func(condition string, values ...any) {
		places := make([]any, len(values))
		for i, value := range values {
			args = append(args, value)
			places[i] = len(args)
		}
		fmt.Fprintf(&sql, " and "+condition, places...)
	}
	if query.OpenedBy != nil {
		filter("opened_by = $%d", bytesOf(query.OpenedBy.UUID))
	}
	if query.Chain != nil {
		filter("chain_id = $%d", bytesOf(query.Chain.UUID))
	}
	if query.Status.Open() {
		sql.WriteString(" and status in ('pending', 'escalated')") // the index contains only these
	}
	if query.Status != "" {
		filter("status = $%d", string(query.Status))
	}
	after, order := "<", "desc"
	if query.Oldest {
		after, order = ">", "asc"
	}
	if query.Before != nil {
		filter("(requested_at, id) "+after+" ($%d, $%d)", int64(query.Before.RequestedAt), bytesOf(query.Before.ID.UUID))
	}
	args = append(args, query.Limit)
	fmt.Fprintf(&sql, " order by requested_at %[1]s, id %[1]s limit $%[2]d", order, len(args))
	return sql.String(), args
}

// Policy implements store.Governance.
func (s *Store) Policy(ctx context.Context, org ledger.OrgID, number int64) (*store.PolicyRecord, error) {
	return one(ctx, s, "policy", policySQL, []any{bytesOf(org.UUID), number}, readPolicy)
}

// Policies implements store.Governance.
func (s *Store) Policies(ctx context.Context, org ledger.OrgID, before int64, limit int) ([]*store.PolicyRecord, error) {
	return list(ctx, s, "policies", selectPolicies+`where org_id = $1 and number <= $2 order by number desc limit $3`,
		[]any{bytesOf(org.UUID), lastBefore(before), limit}, readPolicy)
}

// lastBefore returns the largest number in a list that ends before the given one; 0 means a list of
// all. The largest possible number is included, so that no row can hide there.
func lastBefore(before int64) int64 {
	switch before {
	case 0:
		return math.MaxInt64
	case math.MinInt64:
		return before
	}
	return before - 1
}

// Webhooks implements store.Governance.
func (s *Store) Webhooks(ctx context.Context, org ledger.OrgID) ([]*store.WebhookRecord, error) {
	return list(ctx, s, "webhooks", `select `+webhookColumns+` from webhooks where org_id = $1 and deleted_at is null order by id`,
		[]any{bytesOf(org.UUID)}, readWebhook)
}

// ActLog implements store.Governance.
func (s *Store) ActLog(ctx context.Context, org ledger.OrgID) (*ledger.ActLog, error) {
	return one(ctx, s, "audit log", `select `+logColumns+` from act_logs where org_id = $1`, []any{bytesOf(org.UUID)}, readLog)
}

// ActLogs implements store.Governance.
func (s *Store) ActLogs(ctx context.Context, orgs []ledger.OrgID) (map[ledger.OrgID]*ledger.ActLog, error) {
	found := make(map[ledger.OrgID]*ledger.ActLog, len(orgs))
	if len(orgs) == 0 {
		return found, nil
	}
	err := fetchNow(ctx, s, "audit logs", loadLogsSQL, readLog, func(l *ledger.ActLog) { found[l.Org] = l }, ids(orgs, orgUUID))
	return found, err
}

// Acts implements store.Governance.
func (s *Store) Acts(ctx context.Context, org ledger.OrgID, before int64, limit int) ([]*ledger.StoredAct, error) {
	return list(ctx, s, "acts", selectActs+`where org_id = $1 and sequence <= $2 order by sequence desc limit $3`,
		[]any{bytesOf(org.UUID), lastBefore(before), limit}, readAct)
}

// ScanActs implements store.Governance. It starts at the smallest possible sequence, because an
// audit must also see acts that should not exist.
func (s *Store) ScanActs(ctx context.Context, org ledger.OrgID, visit func(*ledger.StoredAct) error) error {
	last := int64(math.MinInt64)
	return scanPages(scanPage, func() (int, error) {
		count := 0
		err := s.query(ctx, "scan acts", selectActs+`where org_id = $1 and sequence > $2 order by sequence limit $3`,
			[]any{bytesOf(org.UUID), last, scanPage}, func(r *row) error {
				act := readAct(r)
				last, count = act.Sequence, count+1
				return show(r, act, visit)
			})
		return count, err
	})
}

const (
	insertOrganizationsSQL = `insert into organizations (` + organizationColumns + `)
		select id, slug, name, settings::json, controls::json, created_at
		from unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::text[], $6::bigint[]) n(id, slug, name, settings, controls, created_at)`
	insertHeadsSQL = `insert into heads (` + headColumns + `)
		select * from unnest($1::uuid[], $2::bigint[], $3::bytea[], $4::text[], $5::bytea[])`
	updateOrganizationsSQL = `update organizations o set name = n.name, settings = n.settings::json, controls = n.controls::json
		from unnest($1::uuid[], $2::text[], $3::text[], $4::text[]) n(id, name, settings, controls) where o.id = n.id`
	insertApprovalsSQL = `insert into approvals (` + approvalColumns + `)
		select * from unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::bigint[], $5::uuid[], $6::bigint[], $7::text[], $8::bytea[], $9::bytea[])`
	updateApprovalsSQL = `update approvals a set status = n.status, body = n.body, mac = n.mac
		from unnest($1::uuid[], $2::text[], $3::bytea[], $4::bytea[]) n(id, status, body, mac) where a.id = n.id`
	insertPoliciesSQL = `insert into policies (` + policyColumns + `)
		select * from unnest($1::uuid[], $2::bigint[], $3::text[], $4::text[], $5::bytea[], $6::bigint[], $7::text[], $8::bytea[], $9::bigint[])`
	// An endpoint never moves to another organization.
	putWebhooksSQL = `insert into webhooks as w (` + webhookColumns + `)
		select id, org_id, url, events::json, description, secret, created_at, disabled_at, deleted_at, mac, act
		from unnest($1::uuid[], $2::uuid[], $3::text[], $4::text[], $5::text[], $6::bytea[], $7::bigint[], $8::bigint[], $9::bigint[], $10::bytea[], $11::bigint[])
			n(id, org_id, url, events, description, secret, created_at, disabled_at, deleted_at, mac, act)
		on conflict (id) do update set url = excluded.url, events = excluded.events, description = excluded.description,
			secret = excluded.secret, created_at = excluded.created_at, disabled_at = excluded.disabled_at, deleted_at = excluded.deleted_at,
			mac = excluded.mac, act = excluded.act
		where w.org_id = excluded.org_id`
	insertActsSQL = `insert into acts (` + actColumns + `) select * from unnest($1::uuid[], $2::bigint[], $3::bytea[])`
	putLogsSQL    = `insert into act_logs (` + logColumns + `)
		select * from unnest($1::uuid[], $2::bigint[], $3::bytea[], $4::bytea[], $5::bytea[])
		on conflict (org_id) do update set count = excluded.count, last_hash = excluded.last_hash,
			controls = excluded.controls, mac = excluded.mac`
)

// encodedOrganization is an organization with its settings and controls in their stored form.
type encodedOrganization struct {
	*ledger.Organization
	settings, controls string
}

func encodeOrganizations(orgs []*ledger.Organization) ([]encodedOrganization, error) {
	encoded := make([]encodedOrganization, len(orgs))
	for i, org := range orgs {
		settings, err := org.Settings.Encode()
		if err != nil {
			return nil, err
		}
		controls, err := org.Controls.Encode()
		if err != nil {
			return nil, err
		}
		encoded[i] = encodedOrganization{org, string(settings), string(controls)}
	}
	return encoded, nil
}

func sendNewOrganization(rt *roundTrip, org *ledger.Organization, head *ledger.Head) error {
	orgs, err := encodeOrganizations([]*ledger.Organization{org})
	if err != nil {
		return err
	}
	rt.send(insertOrganizationsSQL,
		ids(orgs, func(o encodedOrganization) uuid.UUID { return o.ID.UUID }),
		texts(orgs, func(o encodedOrganization) string { return o.Slug }),
		texts(orgs, func(o encodedOrganization) string { return o.Name }),
		texts(orgs, func(o encodedOrganization) string { return o.settings }),
		texts(orgs, func(o encodedOrganization) string { return o.controls }),
		ints(orgs, func(o encodedOrganization) int64 { return int64(o.CreatedAt) }))
	rt.send(insertHeadsSQL, headParameters([]*ledger.Head{head})...)
	return nil
}

func sendOrganizations(rt *roundTrip, changed []*ledger.Organization) error {
	if len(changed) == 0 {
		return nil
	}
	orgs, err := encodeOrganizations(changed)
	if err != nil {
		return err
	}
	rt.update(len(orgs), "organizations", updateOrganizationsSQL,
		ids(orgs, func(o encodedOrganization) uuid.UUID { return o.ID.UUID }),
		texts(orgs, func(o encodedOrganization) string { return o.Name }),
		texts(orgs, func(o encodedOrganization) string { return o.settings }),
		texts(orgs, func(o encodedOrganization) string { return o.controls }))
	return nil
}

func sendApprovals(rt *roundTrip, opened, moved []*store.ApprovalRecord) {
	if len(opened) > 0 {
		rt.send(insertApprovalsSQL,
			ids(opened, func(a *store.ApprovalRecord) uuid.UUID { return a.ID.UUID }),
			ids(opened, func(a *store.ApprovalRecord) uuid.UUID { return a.Org.UUID }),
			ids(opened, func(a *store.ApprovalRecord) uuid.UUID { return a.Chain.UUID }),
			ints(opened, func(a *store.ApprovalRecord) int64 { return a.Sequence }),
			ids(opened, func(a *store.ApprovalRecord) uuid.UUID { return a.OpenedBy.UUID }),
			ints(opened, func(a *store.ApprovalRecord) int64 { return int64(a.RequestedAt) }),
			texts(opened, func(a *store.ApprovalRecord) string { return string(a.Status) }),
			blobs(opened, func(a *store.ApprovalRecord) []byte { return notNil(a.Body) }),
			blobs(opened, func(a *store.ApprovalRecord) []byte { return notNil(a.MAC) }))
	}
	if len(moved) > 0 {
		rt.update(len(moved), "approvals", updateApprovalsSQL,
			ids(moved, func(a *store.ApprovalRecord) uuid.UUID { return a.ID.UUID }),
			texts(moved, func(a *store.ApprovalRecord) string { return string(a.Status) }),
			blobs(moved, func(a *store.ApprovalRecord) []byte { return notNil(a.Body) }),
			blobs(moved, func(a *store.ApprovalRecord) []byte { return notNil(a.MAC) }))
	}
}

func sendPolicies(rt *roundTrip, policies []*store.PolicyRecord) {
	if len(policies) == 0 {
		return
	}
	rt.send(insertPoliciesSQL,
		ids(policies, func(p *store.PolicyRecord) uuid.UUID { return p.Org.UUID }),
		ints(policies, func(p *store.PolicyRecord) int64 { return p.Number }),
		texts(policies, func(p *store.PolicyRecord) string { return p.Version }),
		texts(policies, func(p *store.PolicyRecord) string { return p.Format }),
		blobs(policies, func(p *store.PolicyRecord) []byte { return notNil(p.Document) }),
		ints(policies, func(p *store.PolicyRecord) int64 { return int64(p.CreatedAt) }),
		texts(policies, func(p *store.PolicyRecord) string { return p.CreatedBy }),
		blobs(policies, func(p *store.PolicyRecord) []byte { return notNil(p.MAC) }),
		ints(policies, func(p *store.PolicyRecord) int64 { return p.Act }))
}

func sendWebhooks(rt *roundTrip, webhooks []*store.WebhookRecord) error {
	if len(webhooks) == 0 {
		return nil
	}
	events := make([]string, len(webhooks))
	for i, webhook := range webhooks {
		encoded, err := json.Marshal(webhook.Events)
		if err != nil {
			return err
		}
		events[i] = string(encoded)
	}
	rt.update(len(webhooks), "webhooks", putWebhooksSQL,
		ids(webhooks, func(w *store.WebhookRecord) uuid.UUID { return w.ID.UUID }),
		ids(webhooks, func(w *store.WebhookRecord) uuid.UUID { return w.Org.UUID }),
		texts(webhooks, func(w *store.WebhookRecord) string { return w.URL }),
		texts(events, func(e string) string { return e }),
		texts(webhooks, func(w *store.WebhookRecord) string { return w.Description }),
		blobs(webhooks, func(w *store.WebhookRecord) []byte { return notNil(w.Secret) }),
		ints(webhooks, func(w *store.WebhookRecord) int64 { return int64(w.CreatedAt) }),
		intsOrNull(webhooks, func(w *store.WebhookRecord) *ledger.Time { return w.DisabledAt }),
		intsOrNull(webhooks, func(w *store.WebhookRecord) *ledger.Time { return w.DeletedAt }),
		blobs(webhooks, func(w *store.WebhookRecord) []byte { return notNil(w.MAC) }),
		ints(webhooks, func(w *store.WebhookRecord) int64 { return w.Act }))
	return nil
}

func sendActs(rt *roundTrip, acts []*ledger.StoredAct, logs []*ledger.ActLog) {
	if len(acts) > 0 {
		rt.send(insertActsSQL,
			ids(acts, func(a *ledger.StoredAct) uuid.UUID { return a.Org.UUID }),
			ints(acts, func(a *ledger.StoredAct) int64 { return a.Sequence }),
			blobs(acts, func(a *ledger.StoredAct) []byte { return notNil(a.Body) }))
	}
	if len(logs) > 0 {
		rt.send(putLogsSQL,
			ids(logs, func(l *ledger.ActLog) uuid.UUID { return l.Org.UUID }),
			ints(logs, func(l *ledger.ActLog) int64 { return l.Count }),
			blobs(logs, func(l *ledger.ActLog) []byte { return hashOrNil(l.Last) }),
			blobs(logs, func(l *ledger.ActLog) []byte { return l.Controls[:] }),
			blobs(logs, func(l *ledger.ActLog) []byte { return notNil(l.MAC) }))
	}
}

const (
	putPollsSQL = `insert into approval_polls (approval_id, polled_at) select * from unnest($1::uuid[], $2::bigint[])
		on conflict (approval_id) do update set polled_at = excluded.polled_at where approval_polls.polled_at < excluded.polled_at`
	selectPollsSQL = `select approval_id, polled_at from approval_polls where approval_id = any($1::uuid[])`
)

// PutPolls implements store.Governance. Rows are written in order of id, so that two replicas do
// not deadlock.
func (s *Store) PutPolls(ctx context.Context, polls map[ledger.ApprovalID]ledger.Time) error {
	if len(polls) == 0 {
		return nil
	}
	approvals := slices.SortedFunc(maps.Keys(polls), func(a, b ledger.ApprovalID) int { return bytes.Compare(a.UUID[:], b.UUID[:]) })
	rt := new(roundTrip)
	rt.send(putPollsSQL, ids(approvals, approvalUUID), ints(approvals, func(id ledger.ApprovalID) int64 { return int64(polls[id]) }))
	return s.runTransaction(ctx, "put polls", rt)
}

// Polls implements store.Governance.
func (s *Store) Polls(ctx context.Context, approvals []ledger.ApprovalID) (map[ledger.ApprovalID]ledger.Time, error) {
	polls := make(map[ledger.ApprovalID]ledger.Time)
	if len(approvals) == 0 {
		return polls, nil
	}
	err := fetchNow(ctx, s, "polls", selectPollsSQL, readPoll, func(p poll) { polls[ledger.ApprovalID{UUID: p.id}] = p.at },
		ids(approvals, approvalUUID))
	return polls, err
}

const (
	importedColumns   = `id, org_id, import_id, key_id, record, signature, imported_at, act, mac`
	selectImported    = `select ` + importedColumns + ` from imported_approvals `
	loadImportedSQL   = selectImported + `where id = any($1::uuid[])`
	insertImportedSQL = `insert into imported_approvals (` + importedColumns + `)
		select * from unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::uuid[], $5::bytea[], $6::bytea[], $7::bigint[], $8::bigint[], $9::bytea[])`
)

func readImported(r *row) *store.ImportedApproval {
	return &store.ImportedApproval{
		ID: ledger.ApprovalID{UUID: r.id()}, Org: ledger.OrgID{UUID: r.id()}, Import: r.id(), Key: ledger.SigningKeyID{UUID: r.id()},
		Record: r.bytes(), Signature: r.bytes(), ImportedAt: r.time(), Act: r.int(), MAC: r.bytes(),
	}
}

// ImportedApproval implements store.Imports.
func (s *Store) ImportedApproval(ctx context.Context, id ledger.ApprovalID) (*store.ImportedApproval, error) {
	return one(ctx, s, "imported approval", selectImported+`where id = $1`, []any{bytesOf(id.UUID)}, readImported)
}

// ImportedApprovals implements store.Imports.
func (s *Store) ImportedApprovals(ctx context.Context, org ledger.OrgID, after ledger.ApprovalID, limit int) ([]*store.ImportedApproval, error) {
	return list(ctx, s, "imported approvals", selectImported+`where org_id = $1 and id `+above(after.UUID)+` $2 order by id limit $3`,
		[]any{bytesOf(org.UUID), bytesOf(after.UUID), limit}, readImported)
}

func loadImported(rt *roundTrip, needs *store.Needs, loaded *store.Loaded) {
	loaded.Imported = make(map[ledger.ApprovalID]*store.ImportedApproval)
	fetchAll(rt, loadImportedSQL, sorted(needs.Imported, approvalUUID), readImported, func(a *store.ImportedApproval) { loaded.Imported[a.ID] = a })
}

// sendImported inserts in order of id, so that two writers do not deadlock.
func sendImported(rt *roundTrip, imported []*store.ImportedApproval) {
	if len(imported) == 0 {
		return
	}
	imported = slices.SortedFunc(slices.Values(imported), func(a, b *store.ImportedApproval) int { return slices.Compare(a.ID.UUID[:], b.ID.UUID[:]) })
	rt.send(insertImportedSQL,
		ids(imported, func(a *store.ImportedApproval) uuid.UUID { return a.ID.UUID }),
		ids(imported, func(a *store.ImportedApproval) uuid.UUID { return a.Org.UUID }),
		ids(imported, func(a *store.ImportedApproval) uuid.UUID { return a.Import }),
		ids(imported, func(a *store.ImportedApproval) uuid.UUID { return a.Key.UUID }),
		blobs(imported, func(a *store.ImportedApproval) []byte { return notNil(a.Record) }),
		blobs(imported, func(a *store.ImportedApproval) []byte { return notNil(a.Signature) }),
		ints(imported, func(a *store.ImportedApproval) int64 { return int64(a.ImportedAt) }),
		ints(imported, func(a *store.ImportedApproval) int64 { return a.Act }),
		blobs(imported, func(a *store.ImportedApproval) []byte { return notNil(a.MAC) }))
}
