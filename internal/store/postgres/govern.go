package postgres

import (
	"encoding/json"

	"github.com/google/uuid"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

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

// encodedOrganization is an organization with its settings and controls as they
// are stored.
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

func sendNewOrganization(x *exchange, org *ledger.Organization, head *ledger.Head) error {
	orgs, err := encodeOrganizations([]*ledger.Organization{org})
	if err != nil {
		return err
	}
	x.send(insertOrganizationsSQL,
		ids(orgs, func(o encodedOrganization) uuid.UUID { return o.ID.UUID }),
		texts(orgs, func(o encodedOrganization) string { return o.Slug }),
		texts(orgs, func(o encodedOrganization) string { return o.Name }),
		texts(orgs, func(o encodedOrganization) string { return o.settings }),
		texts(orgs, func(o encodedOrganization) string { return o.controls }),
		ints(orgs, func(o encodedOrganization) int64 { return int64(o.CreatedAt) }))
	x.send(insertHeadsSQL, headParameters([]*ledger.Head{head})...)
	return nil
}

func sendOrganizations(x *exchange, changed []*ledger.Organization) error {
	if len(changed) == 0 {
		return nil
	}
	orgs, err := encodeOrganizations(changed)
	if err != nil {
		return err
	}
	x.update(len(orgs), "organizations", updateOrganizationsSQL,
		ids(orgs, func(o encodedOrganization) uuid.UUID { return o.ID.UUID }),
		texts(orgs, func(o encodedOrganization) string { return o.Name }),
		texts(orgs, func(o encodedOrganization) string { return o.settings }),
		texts(orgs, func(o encodedOrganization) string { return o.controls }))
	return nil
}

func sendApprovals(x *exchange, asked, moved []*store.ApprovalRecord) {
	if len(asked) > 0 {
		x.send(insertApprovalsSQL,
			ids(asked, func(a *store.ApprovalRecord) uuid.UUID { return a.ID.UUID }),
			ids(asked, func(a *store.ApprovalRecord) uuid.UUID { return a.Org.UUID }),
			ids(asked, func(a *store.ApprovalRecord) uuid.UUID { return a.Chain.UUID }),
			ints(asked, func(a *store.ApprovalRecord) int64 { return a.Sequence }),
			ids(asked, func(a *store.ApprovalRecord) uuid.UUID { return a.OpenedBy.UUID }),
			ints(asked, func(a *store.ApprovalRecord) int64 { return int64(a.RequestedAt) }),
			texts(asked, func(a *store.ApprovalRecord) string { return string(a.Status) }),
			blobs(asked, func(a *store.ApprovalRecord) []byte { return notNil(a.Body) }),
			blobs(asked, func(a *store.ApprovalRecord) []byte { return notNil(a.MAC) }))
	}
	if len(moved) > 0 {
		x.update(len(moved), "approvals", updateApprovalsSQL,
			ids(moved, func(a *store.ApprovalRecord) uuid.UUID { return a.ID.UUID }),
			texts(moved, func(a *store.ApprovalRecord) string { return string(a.Status) }),
			blobs(moved, func(a *store.ApprovalRecord) []byte { return notNil(a.Body) }),
			blobs(moved, func(a *store.ApprovalRecord) []byte { return notNil(a.MAC) }))
	}
}

func sendPolicies(x *exchange, policies []*store.PolicyRecord) {
	if len(policies) == 0 {
		return
	}
	x.send(insertPoliciesSQL,
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

func sendWebhooks(x *exchange, webhooks []*store.WebhookRecord) error {
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
	x.update(len(webhooks), "webhooks", putWebhooksSQL,
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

func sendActs(x *exchange, acts []*ledger.StoredAct, logs []*ledger.ActLog) {
	if len(acts) > 0 {
		x.send(insertActsSQL,
			ids(acts, func(a *ledger.StoredAct) uuid.UUID { return a.Org.UUID }),
			ints(acts, func(a *ledger.StoredAct) int64 { return a.Sequence }),
			blobs(acts, func(a *ledger.StoredAct) []byte { return notNil(a.Body) }))
	}
	if len(logs) > 0 {
		x.send(putLogsSQL,
			ids(logs, func(l *ledger.ActLog) uuid.UUID { return l.Org.UUID }),
			ints(logs, func(l *ledger.ActLog) int64 { return l.Count }),
			blobs(logs, func(l *ledger.ActLog) []byte { return hashOrNil(l.Last) }),
			blobs(logs, func(l *ledger.ActLog) []byte { return l.Controls[:] }),
			blobs(logs, func(l *ledger.ActLog) []byte { return notNil(l.MAC) }))
	}
}
