package console

import (
	"net/http"

	"countersign/internal/ledger"
	"countersign/internal/service"
)

// webhookView is the page of an endpoint and its deliveries.
type webhookView struct {
	Webhook    *service.Webhook
	Deliveries []*service.WebhookDelivery
	Test       *service.WebhookDelivery // the test that was just sent
	Queued     bool                     // a message was just queued again
}

// maxDeliveries is the number of deliveries that the service keeps for an endpoint.
const maxDeliveries = 200

func (v *visit) webhook() (*service.Caller, ledger.WebhookID, error) {
	caller, err := v.admin()
	if err != nil {
		return nil, ledger.WebhookID{}, err
	}
	id, err := v.pathID("webhook_id")
	return caller, ledger.WebhookID{UUID: id}, err
}

func showWebhook(v *visit) error {
	caller, id, err := v.webhook()
	if err != nil {
		return err
	}
	page := &webhookView{Queued: v.r.URL.Query().Get("queued") == "yes"}
	if page.Webhook, err = v.console.service.Webhook(v.r.Context(), caller, id); err != nil {
		return err
	}
	if page.Webhook.Tampered { // the list explains what to do
		v.seeOther("/webhooks")
		return nil
	}
	if page.Deliveries, err = v.console.service.WebhookDeliveries(v.r.Context(), caller, id, nil, maxDeliveries); err != nil {
		return err
	}
	for _, d := range page.Deliveries {
		if !d.Tampered && d.Trigger == service.TriggerTest && d.ID.String() == v.r.URL.Query().Get("test") {
			page.Test = d
		}
	}
	return v.show(http.StatusOK, "webhook.html", "Webhook", page)
}

// testWebhook sends a test message and redirects to its result.
func testWebhook(v *visit) error {
	caller, id, err := v.webhook()
	if err != nil {
		return err
	}
	made, err := v.console.service.TestWebhook(v.r.Context(), caller, id)
	if err != nil {
		return err
	}
	v.seeOther("/webhooks/" + id.String() + "?test=" + made.ID.String())
	return nil
}

func redeliver(v *visit) error {
	caller, id, err := v.webhook()
	if err != nil {
		return err
	}
	attempt, err := v.pathID("delivery_id")
	if err != nil {
		return err
	}
	if err := v.console.service.Redeliver(v.r.Context(), caller, id, ledger.DeliveryID{UUID: attempt}); err != nil {
		return err
	}
	v.seeOther("/webhooks/" + id.String() + "?queued=yes")
	return nil
}
