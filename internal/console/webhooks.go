package console

import (
	"net/http"
	"slices"

	"countersign/internal/ledger"
	"countersign/internal/service"
)

// kinds are the events that an endpoint can subscribe to.
var kinds = []string{
	"chain.completed", "chain.auto_paused", "approval.requested", "approval.escalated", "approval.decided", "approval.timed_out",
	"kill_switch.activated", "kill_switch.deactivated", "ledger.tamper_found",
}

// webhooksView is the page of endpoints. It also shows the secret of one that was just created.
type webhooksView struct {
	Webhooks []*service.Webhook
	Kinds    []kindBox
	Made     *service.Webhook
	Secret   ledger.Secret
	Again    bool   // the form was sent before
	URL      string // as it was sent, if it was refused
	About    string
	Refusal  *refusal
}

type kindBox struct {
	Name    string
	Checked bool
}

func showWebhooks(v *visit) error {
	caller, err := v.admin()
	if err != nil {
		return err
	}
	return v.showWebhooks(http.StatusOK, caller, &webhooksView{}, nil)
}

func (v *visit) showWebhooks(status int, caller *service.Caller, page *webhooksView, checked []string) (err error) {
	if page.Webhooks, err = v.console.service.Webhooks(v.r.Context(), caller); err != nil {
		return err
	}
	for _, kind := range kinds {
		page.Kinds = append(page.Kinds, kindBox{kind, slices.Contains(checked, kind)})
	}
	return v.show(status, "webhooks.html", "Webhooks", page)
}

// createWebhook answers with a page that shows the secret instead of a redirect: it cannot be shown
// again.
func createWebhook(v *visit) error {
	caller, err := v.admin()
	if err != nil {
		return err
	}
	sent, err := v.form(maxText)
	if err != nil {
		return err
	}
	page := &webhooksView{}
	page.Again, err = v.onlyOnce(sent, func() error {
		page.Made, page.Secret, err = v.makeWebhook(caller, sent)
		return err
	})
	if why := refusalOf(err); why != nil {
		page = &webhooksView{URL: sent.text("url"), About: sent.text("description"), Refusal: why}
		return v.showWebhooks(why.Status, caller, page, sent.values["events"])
	}
	if err != nil {
		return err
	}
	return v.showWebhooks(http.StatusCreated, caller, page, nil)
}

func (v *visit) makeWebhook(caller *service.Caller, sent form) (*service.Webhook, ledger.Secret, error) {
	body, err := request(map[string]any{
		"url": sent.text("url"), "description": optional(sent.text("description")), "events": append([]string{}, sent.values["events"]...),
	})
	if err != nil {
		return nil, ledger.Secret{}, err
	}
	wanted, err := service.ParseWebhookRequest(body)
	if err != nil {
		return nil, ledger.Secret{}, err
	}
	return v.console.service.CreateWebhook(v.r.Context(), caller, wanted)
}

func deleteWebhook(v *visit) error {
	caller, id, err := v.webhook()
	if err != nil {
		return err
	}
	if err := v.console.service.DeleteWebhook(v.r.Context(), caller, id); err != nil {
		return err
	}
	v.seeOther("/webhooks")
	return nil
}
