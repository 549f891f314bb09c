package storetest

import (
	"fmt"
	"testing"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

var webhookCases = []testCase{
	{name: "an endpoint is stored unchanged", run: keepsWebhooks},
	{name: "an endpoint that is known is replaced", run: replacesWebhook},
	{name: "endpoints are listed by id, without the deleted", run: listsWebhooks},
	{name: "endpoints are loaded by id, deleted or not", run: loadsWebhooks},
}

func (w *world) webhook(org ledger.OrgID) *store.WebhookRecord {
	now := w.now()
	return &store.WebhookRecord{
		ID: ledger.WebhookID{UUID: ledger.NewTimedID(now, w.random())}, Org: org, URL: fmt.Sprintf("https://hooks.example/%d", now),
		Secret: []byte("sealed"), CreatedAt: now, MAC: []byte("authenticator"), Act: 1 << 40,
	}
}

func (w *world) putWebhooks(t *testing.T, records ...*store.WebhookRecord) {
	t.Helper()
	w.write(t, &store.Changes{Webhooks: records})
}

func keepsWebhooks(t *testing.T, w *world) {
	m := w.join(t)
	plain, full := w.webhook(m.org.ID), w.webhook(m.org.ID)
	at := w.now()
	full.Events = []string{"approval.requested", "it's \"quoted\"", "ü"}
	full.Description, full.Secret, full.DisabledAt = "für die Nachtschicht", everyByte(), &at
	full.MAC = everyByte()
	w.putWebhooks(t, plain, full)
	got := must[[]*store.WebhookRecord](t)(w.open(t).Webhooks(t.Context(), m.org.ID))
	assertEqual(t, "webhooks", got, []*store.WebhookRecord{plain, full})
}

func replacesWebhook(t *testing.T, w *world) {
	m := w.join(t)
	record, other := w.webhook(m.org.ID), w.webhook(m.org.ID)
	w.putWebhooks(t, record, other)
	at := w.now()
	record.URL, record.Events, record.Description = "https://other.example/", []string{"chain.completed"}, "moved"
	record.Secret, record.DisabledAt, record.MAC = []byte("sealed again"), &at, []byte("another")
	w.putWebhooks(t, record)
	assertEqual(t, "replaced", must[[]*store.WebhookRecord](t)(w.Webhooks(t.Context(), m.org.ID)), []*store.WebhookRecord{record, other})
	record.Events, record.DisabledAt = nil, nil
	w.putWebhooks(t, record)
	assertEqual(t, "emptied", must[[]*store.WebhookRecord](t)(w.Webhooks(t.Context(), m.org.ID)), []*store.WebhookRecord{record, other})
}

func listsWebhooks(t *testing.T, w *world) {
	m, other := w.join(t), w.join(t)
	w.putWebhooks(t, w.webhook(other.org.ID))
	first, second, third := w.webhook(m.org.ID), w.webhook(m.org.ID), w.webhook(m.org.ID)
	w.putWebhooks(t, third, first, second)
	assertEqual(t, "all", must[[]*store.WebhookRecord](t)(w.Webhooks(t.Context(), m.org.ID)), []*store.WebhookRecord{first, second, third})
	at := w.now()
	second.DeletedAt = &at
	w.putWebhooks(t, second)
	assertEqual(t, "one deleted", must[[]*store.WebhookRecord](t)(w.Webhooks(t.Context(), m.org.ID)), []*store.WebhookRecord{first, third})
	if found := must[[]*store.WebhookRecord](t)(w.Webhooks(t.Context(), w.newOrganization().ID)); len(found) != 0 {
		t.Errorf("%d endpoints of an unknown organization", len(found))
	}
}

func loadsWebhooks(t *testing.T, w *world) {
	m := w.join(t)
	kept, deleted, unnamed := w.webhook(m.org.ID), w.webhook(m.org.ID), w.webhook(m.org.ID)
	at := w.now()
	deleted.DeletedAt = &at
	w.putWebhooks(t, kept, deleted, unnamed)
	stranger := w.webhook(m.org.ID).ID
	w.look(t, &store.Needs{Webhooks: []ledger.WebhookID{kept.ID, deleted.ID, kept.ID, stranger}}, func(loaded *store.Loaded) {
		assertEqual(t, "webhooks", loaded.Webhooks, map[ledger.WebhookID]*store.WebhookRecord{kept.ID: kept, deleted.ID: deleted})
	})
}
