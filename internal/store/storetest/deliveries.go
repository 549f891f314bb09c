package storetest

import (
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

var deliveryCases = []testCase{
	{name: "an attempt is stored unchanged", run: keepsDeliveries},
	{name: "attempts are listed newest first, by webhook and time", run: listsDeliveries},
	{name: "the newest attempts of a webhook are kept", run: trimsDeliveries},
	{name: "old attempts of every webhook are removed", run: dropsDeliveries},
}

// delivery returns an attempt whose id sorts after all earlier ones.
func (w *world) delivery(org ledger.OrgID, webhook ledger.WebhookID) *store.DeliveryRecord {
	now := w.now()
	return &store.DeliveryRecord{
		ID: ledger.DeliveryID{UUID: ledger.NewTimedID(now, [10]byte{})}, Org: org, Webhook: webhook, MessageID: "msg-1", Kind: "approval.requested",
		Trigger: "event", Attempt: 3, State: "retrying", Code: 503, Class: "http_status", Error: "it's \"late\", naïvely 🕰",
		At: now, Duration: 1234 * time.Millisecond, Notice: everyByte(), MAC: everyByte(),
	}
}

func newHookID() ledger.WebhookID { return ledger.WebhookID{UUID: uuid.New()} }

func (w *world) addDelivery(t *testing.T, d *store.DeliveryRecord, keep int, since ledger.Time) {
	t.Helper()
	if err := w.AddDelivery(t.Context(), d, keep, since); err != nil {
		t.Fatalf("add delivery: %v", err)
	}
}

func keepsDeliveries(t *testing.T, w *world) {
	m := w.join(t)
	full, bare := w.delivery(m.org.ID, newHookID()), w.delivery(m.org.ID, newHookID())
	bare.MessageID, bare.Class, bare.Error, bare.Code, bare.Notice = "", "", "", 0, []byte{}
	w.addDelivery(t, full, 9, 0)
	w.addDelivery(t, bare, 9, 0)
	for _, want := range []*store.DeliveryRecord{full, bare} {
		assertEqual(t, "delivery", must[*store.DeliveryRecord](t)(w.open(t).Delivery(t.Context(), want.ID)), want)
	}
	_, err := w.Delivery(t.Context(), ledger.DeliveryID{UUID: uuid.New()})
	wantError(t, "an unknown one", err, store.ErrNotFound)
	wantError(t, "again", w.AddDelivery(t.Context(), full, 9, 0), store.ErrExists)
}

func listsDeliveries(t *testing.T, w *world) {
	m, other := w.join(t), w.join(t)
	one, two := newHookID(), newHookID()
	var all []*store.DeliveryRecord
	for _, hook := range []ledger.WebhookID{one, two, one, one} {
		all = append(all, w.delivery(m.org.ID, hook))
	}
	for _, d := range append(slices.Clone(all), w.delivery(other.org.ID, one)) {
		w.addDelivery(t, d, 9, 0)
	}
	slices.Reverse(all)
	list := func(query store.DeliveryQuery) []*store.DeliveryRecord {
		query.Org = m.org.ID
		return must[[]*store.DeliveryRecord](t)(w.Deliveries(t.Context(), query))
	}
	assertEqual(t, "of every webhook", list(store.DeliveryQuery{Limit: 9}), all)
	assertEqual(t, "of one", list(store.DeliveryQuery{Webhook: &one, Limit: 9}), []*store.DeliveryRecord{all[0], all[1], all[3]})
	assertEqual(t, "the next page", list(store.DeliveryQuery{Webhook: &one, Before: &all[0].ID, Limit: 1}), []*store.DeliveryRecord{all[1]})
	assertEqual(t, "since a moment", list(store.DeliveryQuery{Since: all[1].At, Limit: 9}), all[:2])
}

func trimsDeliveries(t *testing.T, w *world) {
	m := w.join(t)
	busy, quiet := newHookID(), newHookID()
	kept := w.delivery(m.org.ID, quiet)
	w.addDelivery(t, kept, 2, 0)
	var added []*store.DeliveryRecord
	for range 5 {
		d := w.delivery(m.org.ID, busy)
		added = append(added, d)
		w.addDelivery(t, d, 2, 0)
	}
	assertEqual(t, "deliveries", must[[]*store.DeliveryRecord](t)(w.Deliveries(t.Context(), store.DeliveryQuery{Org: m.org.ID, Limit: 9})),
		[]*store.DeliveryRecord{added[4], added[3], kept})
}

func dropsDeliveries(t *testing.T, w *world) {
	m := w.join(t)
	old, edge, last := w.delivery(m.org.ID, newHookID()), w.delivery(m.org.ID, newHookID()), w.delivery(m.org.ID, newHookID())
	w.addDelivery(t, old, 9, 0)
	w.addDelivery(t, edge, 9, 0)
	w.addDelivery(t, last, 9, edge.At)
	assertEqual(t, "deliveries", must[[]*store.DeliveryRecord](t)(w.Deliveries(t.Context(), store.DeliveryQuery{Org: m.org.ID, Limit: 9})),
		[]*store.DeliveryRecord{last, edge})
}
