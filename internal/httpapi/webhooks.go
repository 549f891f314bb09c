package httpapi

import (
	"bytes"
	"net/http"

	"countersign/internal/canon"
	"countersign/internal/ledger"
	"countersign/internal/service"
)

// listWebhooks loads all endpoints and selects a page, because there are only a few.
func listWebhooks(x *exchange) error {
	q := x.query()
	limit := q.limit()
	after, given := q.idCursor(webhookCursor)
	if err := q.err(); err != nil {
		return err
	}
	records, err := x.api.service.Webhooks(x.r.Context(), x.caller)
	if err != nil {
		return err
	}
	var page []*service.Webhook
	for _, r := range records {
		if len(page) < limit && (!given || bytes.Compare(r.ID.UUID[:], after[:]) > 0) {
			page = append(page, r)
		}
	}
	cursor := func(shown *service.Webhook) string { return encodeIDCursor(webhookCursor, shown.ID.UUID) }
	return list(x, page, limit, cursor, func(dst []byte, shown *service.Webhook) []byte {
		return appendWebhook(dst, shown, nil)
	})
}

func createWebhook(x *exchange) error {
	request, err := parsed(x, service.ParseWebhookRequest)
	if err != nil {
		return err
	}
	made, secret, err := x.api.service.CreateWebhook(x.r.Context(), x.caller, request)
	if err != nil {
		return err
	}
	return x.answer(http.StatusCreated, appendWebhook(nil, made, &secret))
}

func deleteWebhook(x *exchange) error {
	id, err := x.webhookID()
	if err != nil {
		return err
	}
	if err := x.api.service.DeleteWebhook(x.r.Context(), x.caller, id); err != nil {
		return err
	}
	x.noContent()
	return nil
}

func testWebhook(x *exchange) error {
	id, err := x.webhookID()
	if err != nil {
		return err
	}
	made, err := x.api.service.TestWebhook(x.r.Context(), x.caller, id)
	if err != nil {
		return err
	}
	return x.answer(http.StatusOK, appendDelivery(nil, made))
}

func listDeliveries(x *exchange) error {
	id, err := x.webhookID()
	if err != nil {
		return err
	}
	q := x.query()
	limit := q.limit()
	before, given := q.idCursor(deliveryCursor)
	if err := q.err(); err != nil {
		return err
	}
	var from *ledger.DeliveryID
	if given {
		from = &ledger.DeliveryID{UUID: before}
	}
	page, err := x.api.service.WebhookDeliveries(x.r.Context(), x.caller, id, from, limit)
	if err != nil {
		return err
	}
	cursor := func(shown *service.WebhookDelivery) string { return encodeIDCursor(deliveryCursor, shown.ID.UUID) }
	return list(x, page, limit, cursor, appendDelivery)
}

func redeliver(x *exchange) error {
	id, err := x.webhookID()
	if err != nil {
		return err
	}
	attempt, err := x.pathID("delivery_id")
	if err != nil {
		return err
	}
	if err := x.api.service.Redeliver(x.r.Context(), x.caller, id, ledger.DeliveryID{UUID: attempt}); err != nil {
		return err
	}
	return x.answer(http.StatusAccepted, []byte(`{"status":"queued"}`))
}

// appendDelivery encodes an attempt to deliver, without the body that was sent.
func appendDelivery(dst []byte, d *service.WebhookDelivery) []byte {
	w := canon.BeginObject(dst)
	w.String("delivery_id", d.ID.String())
	w.String("webhook_id", d.Webhook.String())
	if d.Tampered {
		w.String("state", "tampered")
		return w.End()
	}
	w.String("message_id", d.MessageID)
	w.String("type", d.Kind)
	w.String("trigger", d.Trigger)
	w.Int("attempt", d.Attempt)
	w.String("state", d.State)
	if d.Code == 0 {
		w.Null("response_status")
	} else {
		w.Int("response_status", d.Code)
	}
	w.StringOrNull("error_class", d.Class)
	w.StringOrNull("error", d.Error)
	w.String("attempted_at", d.At.String())
	w.Int("duration_ms", d.Duration.Milliseconds())
	return w.End()
}

// appendWebhook encodes an endpoint. secret is nil unless the endpoint was just created.
func appendWebhook(dst []byte, h *service.Webhook, secret *ledger.Secret) []byte {
	w := canon.BeginObject(dst)
	w.String("webhook_id", h.ID.String())
	if h.Tampered {
		w.String("status", "tampered")
		return w.End()
	}
	w.String("url", h.URL)
	w.Strings("events", h.Events)
	w.StringOrNull("description", h.Description)
	status := "active"
	if h.DisabledAt != nil {
		status = "disabled"
	}
	w.String("status", status)
	w.String("created_at", h.CreatedAt.String())
	appendTime(&w, "disabled_at", h.DisabledAt)
	if secret != nil {
		w.String("secret", secret.Reveal())
	}
	return w.End()
}
