package httpapi

import (
	"net/http"

	"countersign/internal/fault"
	"countersign/internal/service"
)

// pressSlackButton receives what Slack sends when somebody presses a button. Slack shows nothing of
// an answer.
func pressSlackButton(x *exchange) error {
	if err := x.api.service.RequireSlack(); err != nil {
		return err
	}
	const form = "application/x-www-form-urlencoded"
	if mediaType(x.r.Header.Get("Content-Type")) != form {
		return fault.Errorf(fault.CodeUnsupportedMedia, "send the body as Content-Type: %s", form)
	}
	body, err := x.read(service.MaxSlackPress)
	if err != nil {
		return err
	}
	timestamp, signature := x.r.Header.Get("X-Slack-Request-Timestamp"), x.r.Header.Get("X-Slack-Signature")
	if err := x.api.service.PressSlackButton(x.r.Context(), timestamp, signature, body); err != nil {
		return err
	}
	x.status = http.StatusOK
	x.w.Header().Set("Cache-Control", "no-store")
	x.w.WriteHeader(x.status)
	return nil
}
