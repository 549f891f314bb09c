package httpapi_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
)

type webhook struct {
	ID          string   `json:"webhook_id"`
	URL         string   `json:"url"`
	Events      []string `json:"events"`
	Description *string  `json:"description"`
	Status      string   `json:"status"`
	Secret      string   `json:"secret"`
}

type delivery struct {
	ID      string `json:"delivery_id"`
	Webhook string `json:"webhook_id"`
	Message string `json:"message_id"`
	Type    string `json:"type"`
	Trigger string `json:"trigger"`
	State   string `json:"state"`
	Code    *int   `json:"response_status"`
}

// The log of a webhook lists each attempt, page by page, and what is in it can be
// delivered again by an admin who names the webhook too.
func TestDeliveryLog(t *testing.T) {
	onEachStack(t, func(t *testing.T, s *stack) {
		made := decode[webhook](t, s.post(t, s.acme.admin, "/v1/webhooks", `{"url":"https://hooks.example.com/1"}`).expect(t, http.StatusCreated)).ID
		other := decode[webhook](t, s.post(t, s.acme.admin, "/v1/webhooks", `{"url":"https://hooks.example.com/2"}`).expect(t, http.StatusCreated)).ID
		var want []string
		for range 3 {
			tested := decode[delivery](t, s.post(t, s.acme.admin, "/v1/webhooks/"+made+"/test", "").expect(t, http.StatusOK))
			want = append([]string{tested.ID}, want...)
		}
		log := "/v1/webhooks/" + made + "/deliveries"
		for _, limit := range []int{1, 2, 3, 50} {
			var got []string
			for _, d := range everyPage[delivery](t, s, s.acme.admin, log, limit) {
				got = append(got, d.ID)
			}
			if !slices.Equal(got, want) {
				t.Errorf("pages of %d list %v, want %v", limit, got, want)
			}
		}
		s.get(t, s.acme.admin, "/v1/webhooks/"+other+"/deliveries").expect(t, http.StatusOK).without(t, want[0])
		s.post(t, s.acme.admin, log+"/"+want[0]+"/redeliver", "").expect(t, http.StatusAccepted)
		s.post(t, s.acme.admin, "/v1/webhooks/"+other+"/deliveries/"+want[0]+"/redeliver", "").refuse(t, http.StatusNotFound, "not_found")
	})
}

// A webhook's secret is shown once, and is stored in no form that can be read.
func TestWebhooks(t *testing.T) {
	onEachStack(t, func(t *testing.T, s *stack) {
		var made []string
		for i := range 3 {
			body := fmt.Sprintf(`{"url":"https://hooks.example.com/%d","events":["approval.requested"],"description":"number %d"}`, i, i)
			created := decode[webhook](t, s.post(t, s.acme.admin, "/v1/webhooks", body).expect(t, http.StatusCreated))
			if !strings.HasPrefix(created.Secret, "whsec_") || created.Status != "active" || len(created.Events) != 1 || *created.Description != fmt.Sprintf("number %d", i) {
				t.Errorf("created %+v", created)
			}
			s.get(t, s.acme.admin, "/v1/webhooks").expect(t, http.StatusOK).without(t, created.Secret, created.Secret[6:30])
			s.get(t, s.acme.admin, "/v1/audit-log").expect(t, http.StatusOK).without(t, created.Secret[6:30])
			if strings.Contains(s.database.dump(t), created.Secret[6:30]) {
				t.Error("the secret is stored as it is")
			}
			made = append(made, created.ID)
		}
		if all := decode[webhook](t, s.post(t, s.acme.admin, "/v1/webhooks", `{"url":"https://hooks.example.com/all"}`).expect(t, http.StatusCreated)); len(all.Events) != 0 || all.Description != nil {
			t.Errorf("created %+v", all)
		} else {
			made = append(made, all.ID)
		}
		ids := func(limit int) (ids []string) {
			for _, listed := range everyPage[webhook](t, s, s.acme.admin, "/v1/webhooks", limit) {
				ids = append(ids, listed.ID)
			}
			return ids
		}
		for _, limit := range []int{1, 2, 4, 50} {
			if got := ids(limit); !slices.Equal(got, made) {
				t.Errorf("pages of %d list %d webhooks, or in another order", limit, len(got))
			}
		}
		del := func(key credential, id string) *answer {
			return s.do(t, call{method: http.MethodDelete, path: "/v1/webhooks/" + id, key: key.text})
		}
		del(s.rival.admin, made[0]).refuse(t, http.StatusNotFound, "not_found")
		tested := decode[delivery](t, s.post(t, s.acme.admin, "/v1/webhooks/"+made[0]+"/test", "").expect(t, http.StatusOK))
		if tested.State != "delivered" || tested.Webhook != made[0] || tested.Type != "webhook.test" || *tested.Code != http.StatusNoContent {
			t.Errorf("tested: %+v", tested)
		}
		s.post(t, s.rival.admin, "/v1/webhooks/"+made[0]+"/test", "").refuse(t, http.StatusNotFound, "not_found")
		for range 2 {
			if got := del(s.acme.admin, made[0]).expect(t, http.StatusNoContent); len(got.body) != 0 {
				t.Errorf("deleted with %s", got.body)
			}
		}
		s.post(t, s.acme.admin, "/v1/webhooks/"+made[0]+"/test", "").refuse(t, http.StatusNotFound, "not_found")
		if got := ids(50); !slices.Equal(got, made[1:]) {
			t.Errorf("after a deletion, %d are listed", len(got))
		}
		for len(made) < 21 {
			body := fmt.Sprintf(`{"url":"https://hooks.example.com/%d"}`, len(made))
			made = append(made, decode[webhook](t, s.post(t, s.acme.admin, "/v1/webhooks", body).expect(t, http.StatusCreated)).ID)
		}
		s.post(t, s.acme.admin, "/v1/webhooks", `{"url":"https://hooks.example.com/more"}`).refuse(t, http.StatusUnprocessableEntity, "invalid_request")
	})
}
