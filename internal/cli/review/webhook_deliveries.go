package review

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"countersign/internal/cli"
	"countersign/internal/ledger"
)

type webhookDeliveriesCommand struct {
	ID string `arg:"" name:"webhook-id" help:"The webhook's id."`
	listFlags
}

type webhookRedeliverCommand struct {
	cli.Remote
	ID       string `arg:"" name:"webhook-id" help:"The webhook's id."`
	Delivery string `arg:"" name:"delivery-id" help:"The id of an attempt in the webhook's log."`
	JSON     bool   `name:"json" help:"Print JSON." env:"-"`
}

type webhookTestCommand struct {
	cli.Remote
	ID   string `arg:"" name:"webhook-id" help:"The webhook's id."`
	JSON bool   `name:"json" help:"Print JSON." env:"-"`
}

// DeliveryEntry is an attempted delivery in the API's form.
type DeliveryEntry struct {
	ID       string    `json:"delivery_id"`
	Webhook  string    `json:"webhook_id"`
	Message  string    `json:"message_id"`
	Type     string    `json:"type"`
	Trigger  string    `json:"trigger"`
	Attempt  int64     `json:"attempt"`
	State    string    `json:"state"`
	Status   *int      `json:"response_status"`
	Class    *string   `json:"error_class"`
	Error    *string   `json:"error"`
	At       time.Time `json:"attempted_at"`
	Duration int64     `json:"duration_ms"`
}

// answer returns the receiver's status, or the class of the error.
func (d *DeliveryEntry) answer() string {
	switch {
	case d.Status != nil:
		return strconv.Itoa(*d.Status)
	case d.Class != nil:
		return *d.Class
	}
	return ""
}

// Run lists the attempted deliveries.
func (c *webhookDeliveriesCommand) Run(p *cli.Process) error {
	path, err := webhookPath(c.ID)
	if err != nil {
		return err
	}
	return runList(p, &c.listFlags, path+"/deliveries", make(url.Values), table[DeliveryEntry]{
		header: []string{"ID", "AT", "EVENT", "ATTEMPT", "STATE", "ANSWER", "TOOK"},
		row: func(d *DeliveryEntry) []string {
			if d.State == "tampered" { // the server sends only the id
				return cli.Cells(d.ID, changedOutside, "", "", "", "", "")
			}
			return cli.Cells(d.ID, cli.FormatTime(d.At), d.Type, fmt.Sprintf("%s %d", d.Trigger, d.Attempt), d.State, d.answer(), fmt.Sprintf("%d ms", d.Duration))
		},
		empty: "No delivery has been attempted yet.",
	})
}

// Run queues a message again.
func (c *webhookRedeliverCommand) Run(p *cli.Process) error {
	api, path, err := connectWebhook(p, &c.Remote, c.ID)
	if err != nil {
		return err
	}
	if _, err := ledger.ParseID(c.Delivery); err != nil {
		return cli.Usage(fmt.Errorf("a delivery's id has the form 8-4-4-4-12; countersign webhooks deliveries lists them"))
	}
	var queued struct {
		Status string `json:"status"`
	}
	if err := api.Call(p.Ctx, http.MethodPost, path+"/deliveries/"+c.Delivery+"/redeliver", nil, &queued); err != nil {
		return err
	}
	if c.JSON {
		return p.PrintJSON(queued)
	}
	p.Notef("The message is queued. See the result with:  countersign webhooks deliveries %s", c.ID)
	return nil
}

// Run delivers a test. If it fails, the exit status is 1.
func (c *webhookTestCommand) Run(p *cli.Process) error {
	api, path, err := connectWebhook(p, &c.Remote, c.ID)
	if err != nil {
		return err
	}
	var made DeliveryEntry
	if err := api.Call(p.Ctx, http.MethodPost, path+"/test", nil, &made); err != nil {
		return err
	}
	if c.JSON {
		if err := p.PrintJSON(made); err != nil {
			return err
		}
	} else {
		text := made.State + " in " + strconv.FormatInt(made.Duration, 10) + " ms"
		if made.Error != nil {
			text += ": " + *made.Error
		} else if made.Status != nil {
			text += ": the receiver answered " + strconv.Itoa(*made.Status)
		}
		fmt.Fprintln(p.Out, cli.OneLine(text))
	}
	if made.State != "delivered" {
		return &cli.ExitError{Code: cli.ExitFailed}
	}
	return nil
}

// connectWebhook connects to the API and returns the path of a webhook in it.
func connectWebhook(p *cli.Process, server *cli.Remote, id string) (api *cli.Client, path string, err error) {
	if path, err = webhookPath(id); err != nil {
		return nil, "", err
	}
	if api, err = server.Connect(p); err != nil {
		return nil, "", cli.Usage(err)
	}
	return api, path, nil
}

func webhookPath(id string) (string, error) {
	if _, err := ledger.ParseID(id); err != nil {
		return "", cli.Usage(errors.New("a webhook's id has the form 8-4-4-4-12; countersign webhooks list lists them"))
	}
	return "/v1/webhooks/" + id, nil
}
