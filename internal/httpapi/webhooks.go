package httpapi

import (
	"bytes"
	"net/http"

	"countersign/internal/canon"
	"countersign/internal/ledger"
	"countersign/internal/service"
)

// webhook is an endpoint as callers see it.
type webhook struct {
	id          ledger.WebhookID
	url         string
	events      []string
	description string
	createdAt   ledger.Time
	disabledAt  *ledger.Time
}

// listWebhooks pages through the few that there can be.
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
	var page []webhook
	for _, r := range records {
		if len(page) < limit && (!given || bytes.Compare(r.ID.UUID[:], after[:]) > 0) {
			page = append(page, webhook{r.ID, r.URL, r.Events, r.Description, r.CreatedAt, r.DisabledAt})
		}
	}
	next := ""
	if len(page) == limit {
		next = encodeIDCursor(webhookCursor, page[limit-1].id.UUID)
	}
	return x.answer(http.StatusOK, appendList(nil, page, next, func(dst []byte, shown webhook) []byte {
		return appendWebhook(dst, shown, nil)
	}))
}

func createWebhook(x *exchange) error {
	body, err := x.body()
	if err != nil {
		return err
	}
	request, err := service.ParseWebhookRequest(body)
	if err != nil {
		return err
	}
	r, secret, err := x.api.service.CreateWebhook(x.r.Context(), x.caller, request)
	if err != nil {
		return err
	}
	made := webhook{r.ID, r.URL, r.Events, r.Description, r.CreatedAt, r.DisabledAt}
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
	x.nothing()
	return nil
}

func testWebhook(x *exchange) error {
	id, err := x.webhookID()
	if err != nil {
		return err
	}
	if err := x.api.service.TestWebhook(x.r.Context(), x.caller, id); err != nil {
		return err
	}
	return x.answer(http.StatusAccepted, []byte(`{"status":"queued"}`))
}

// appendWebhook shows an endpoint; its secret only when it was just made.
func appendWebhook(dst []byte, h webhook, secret *ledger.Secret) []byte {
	w := canon.BeginObject(dst)
	w.String("webhook_id", h.id.String())
	w.String("url", h.url)
	w.Strings("events", h.events)
	w.StringOrNull("description", h.description)
	status := "active"
	if h.disabledAt != nil {
		status = "disabled"
	}
	w.String("status", status)
	w.String("created_at", h.createdAt.String())
	appendTime(&w, "disabled_at", h.disabledAt)
	if secret != nil {
		w.String("secret", secret.Reveal())
	}
	return w.End()
}
