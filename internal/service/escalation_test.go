package service_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"

	"countersign/internal/fault"
	"countersign/internal/ledger"
	"countersign/internal/service"
	"countersign/internal/store"
	"countersign/internal/testdb"
)

// countingHooks counts the reads of webhooks.
type countingHooks struct {
	store.Store
	reads atomic.Int64
}

func (c *countingHooks) Webhooks(ctx context.Context, org ledger.OrgID) ([]*store.WebhookRecord, error) {
	c.reads.Add(1)
	return c.Store.Webhooks(ctx, org)
}

// An organization is reported as long as an escalation would reach nobody in it: neither a webhook
// that receives escalations, nor an approver by e-mail. A further call reads no webhooks unless
// something has changed.
//
//countersign:race
func TestEscalationsWithoutRecipient(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		g := govern(t, db)
		hooks := &countingHooks{Store: g.another()}
		mute := serve(t, service.Config{Store: hooks, Keys: g.ring, Secrets: g.ring, Clock: g.clock.Now})
		mailing := serve(t, service.Config{Store: g.another(), Keys: g.ring, Secrets: g.ring, Clock: g.clock.Now, Mail: true})
		newTenant(t, g.Service, "quiet") // stays as it is
		check := func(what string, s *service.Service, want bool) *service.NoRecipient {
			t.Helper()
			without, organizations, err := s.EscalationsWithoutRecipient(t.Context())
			done(t, err)
			var found *service.NoRecipient
			for _, u := range without {
				if u.Slug == "acme" {
					found = u
				}
			}
			own := must[*service.NoRecipient](t)(s.NoRecipient(t.Context(), g.who.admin))
			if organizations != 2 || (found != nil) != want || (own != nil) != want || len(without) < 1 {
				t.Errorf("%s: %d of %d organizations, acme's own %v; want acme among them: %t", what, len(without), organizations, own, want)
			}
			return found
		}
		check("nothing is set", mute, true)
		check("nothing is set, with mail", mailing, true)
		g.settings(`{"fallback_approvers":["ceo@example.com"]}`)
		if u := check("a list without mail", mute, true); u != nil && (u.Approvers != 1 || u.Mail) {
			t.Errorf("%+v", u)
		}
		check("a list with mail", mailing, false)
		g.settings(`{"fallback_approvers":[]}`)
		check("the list is gone", mailing, true)
		g.hook("approval.decided")
		check("a webhook that wants something else", mute, true)
		wanting := g.hook("approval.escalated", "approval.requested")
		check("a webhook that wants it", mute, false)
		check("a webhook that wants it, with mail", mailing, false)
		before := hooks.reads.Load()
		for range 5 {
			check("looking again", mute, false)
		}
		if reads := hooks.reads.Load() - before; reads != 0 {
			t.Errorf("looking again read webhooks %d times", reads)
		}
		done(t, g.DeleteWebhook(t.Context(), g.who.admin, wanting.ID))
		check("the webhook is deleted", mute, true)
		every := g.hook()
		check("a webhook that wants everything", mute, false)
		done(t, g.Jobs().DisableWebhook(t.Context(), g.who.id, every.ID))
		check("the webhook is disabled", mute, true)
		_, err := mute.NoRecipient(t.Context(), g.who.member)
		checkCode(t, "a member asks", err, fault.CodeForbidden)
	})
}

// Each reason why an escalation reaches nobody says what is missing and what to do. A server
// with a Slack app offers that, too.
func TestNoRecipientSaysWhatToDo(t *testing.T) {
	t.Parallel()
	seen := make(map[string]bool)
	for _, u := range []service.NoRecipient{{}, {Approvers: 1}, {Mail: true}} {
		if u.Why() == "" || u.Remedy() == "" || seen[u.Why()] || seen[u.Remedy()] {
			t.Errorf("%+v: %q, %q", u, u.Why(), u.Remedy())
		}
		seen[u.Why()], seen[u.Remedy()] = true, true
		if u.Slack = true; !strings.Contains(u.Remedy(), "set a Slack channel in the settings") {
			t.Errorf("%+v: %q", u, u.Remedy())
		}
	}
}
