package service_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"countersign/internal/fault"
	"countersign/internal/ledger"
	"countersign/internal/notify"
	"countersign/internal/service"
	"countersign/internal/store"
	"countersign/internal/testdb"
)

func (g *governed) testHook(id ledger.WebhookID) *store.DeliveryRecord {
	g.t.Helper()
	return must[*store.DeliveryRecord](g.t)(g.TestWebhook(g.t.Context(), g.who.admin, id))
}

func (g *governed) deliveries(id ledger.WebhookID) []*store.DeliveryRecord {
	g.t.Helper()
	return must[[]*store.DeliveryRecord](g.t)(g.WebhookDeliveries(g.t.Context(), g.who.admin, id, nil, 1000))
}

// A message is redelivered unchanged, with the same id. A row of the log that was changed or
// inserted outside the service is never delivered: lists show only its ids, and an audit finds it.
func TestForgedDeliveriesAreNotSentAgain(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		g := govern(t, db)
		hook, other := g.hook(), g.hook(string(notify.ChainCompleted))
		sent := g.testHook(hook.ID)
		g.fanOut()
		scene := g.scene()
		was := scene.last("webhook_deliveries")
		redeliver := func(to ledger.WebhookID, id ledger.DeliveryID) error {
			return g.Redeliver(t.Context(), g.who.admin, to, id)
		}
		scene.editEachColumn(&was, []string{"id"}, nil, func(edit string) {
			for _, shown := range append(g.deliveries(hook.ID), g.deliveries(other.ID)...) {
				if nothing := (store.DeliveryRecord{ID: shown.ID, Org: shown.Org, Webhook: shown.Webhook, Tampered: true}); fmt.Sprint(*shown) != fmt.Sprint(nothing) {
					t.Errorf("%s: it is listed as %+v", edit, shown)
				}
				checkCode(t, edit, redeliver(shown.Webhook, shown.ID), fault.CodeEvidenceTampered)
			}
			if err := redeliver(hook.ID, sent.ID); err == nil {
				t.Errorf("%s: it is delivered again", edit)
			}
			if _, queued := g.fanOut(); len(queued) != 0 {
				t.Errorf("%s: %s is queued", edit, queued[0].Body)
			}
			if !strings.Contains(edit, ".org_id") {
				g.auditFinds(edit, ledger.CheckRegistry)
			}
		})
		inserted := ledger.DeliveryID{UUID: ledger.NewTimedID(1, [10]byte{7})}
		done(t, scene.insert(ptr(was.with(map[string]any{"id": inserted.UUID[:]}))))
		checkCode(t, "a row that was inserted", redeliver(hook.ID, inserted), fault.CodeEvidenceTampered)
		done(t, scene.exec("DELETE FROM webhook_deliveries WHERE id = "+scene.dialect.mark(1), inserted.UUID[:]))
		checkCode(t, "under another webhook", redeliver(other.ID, sent.ID), fault.CodeNotFound)
		rival := newTenant(t, g.Service, "rival")
		checkCode(t, "by another organization", g.Redeliver(t.Context(), rival.admin, hook.ID, sent.ID), fault.CodeNotFound)
		checkCode(t, "by a member", g.Redeliver(t.Context(), g.who.member, hook.ID, sent.ID), fault.CodeForbidden)
		done(t, redeliver(hook.ID, sent.ID))
		_, queued := g.fanOut()
		if len(queued) != 1 {
			t.Fatalf("%d jobs are queued", len(queued))
		}
		d := must[*service.Delivery](t)(g.Jobs().Delivery(t.Context(), queued[0]))
		if !bytes.Equal(d.Notice, sent.Notice) || d.MessageID != sent.MessageID || d.Trigger != service.TriggerRedelivery || d.Webhook.ID != hook.ID {
			t.Errorf("it is delivered again as %+v", d)
		}
		g.clock.Advance(31 * 24 * time.Hour)
		checkCode(t, "a row that was kept for longer than the log keeps any", redeliver(hook.ID, sent.ID), fault.CodeNotFound)
	})
}

// The log keeps the newest attempts of each webhook, for a limited time.
func TestDeliveryLogIsBounded(t *testing.T) {
	g := govern(t, testdb.SQLite(t))
	hook, quiet := g.hook(), g.hook()
	first := g.testHook(quiet.ID)
	for range 205 {
		g.testHook(hook.ID)
	}
	if kept := g.deliveries(hook.ID); len(kept) != 200 || len(g.deliveries(quiet.ID)) != 1 {
		t.Errorf("%d attempts are kept", len(kept))
	}
	g.clock.Advance(30*24*time.Hour + time.Second)
	if kept := append(g.deliveries(hook.ID), g.deliveries(quiet.ID)...); len(kept) != 0 {
		t.Errorf("%d attempts are listed after a month", len(kept))
	}
	g.testHook(hook.ID)
	if _, err := g.store.Delivery(t.Context(), first.ID); err == nil {
		t.Error("an attempt of another webhook is kept for longer than a month")
	}
}

// A disabled webhook can be neither tested nor redelivered to, and only admins may test.
func TestDisabledWebhooksAreNotTested(t *testing.T) {
	g := govern(t, testdb.SQLite(t))
	hook := g.hook()
	sent := g.testHook(hook.ID)
	done(t, g.Jobs().DisableWebhook(t.Context(), g.who.id, hook.ID))
	_, err := g.TestWebhook(t.Context(), g.who.admin, hook.ID)
	checkCode(t, "a test", err, fault.CodeInvalid)
	checkCode(t, "a redelivery", g.Redeliver(t.Context(), g.who.admin, hook.ID, sent.ID), fault.CodeInvalid)
	_, err = g.TestWebhook(t.Context(), g.who.member, hook.ID)
	checkCode(t, "by a member", err, fault.CodeForbidden)
}
