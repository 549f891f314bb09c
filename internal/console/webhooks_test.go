package console

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"countersign/internal/notify"
	"countersign/internal/service"
)

// The page of a webhook shows how long an attempt took.
func TestDurationOfAnAttemptIsShown(t *testing.T) {
	t.Parallel()
	attempt := &service.WebhookDelivery{State: service.DeliveryDelivered, Code: 204, Duration: 1234 * time.Millisecond}
	var shown bytes.Buffer
	err := pages()["webhook.html"].ExecuteTemplate(&shown, "layout", page{Body: &webhookView{
		Webhook: new(service.Webhook), Deliveries: []*service.WebhookDelivery{attempt}, Test: attempt,
	}})
	if err != nil || strings.Count(shown.String(), "1.234s") != 2 {
		t.Errorf("an attempt of 1.234 s is shown as %s, %v", shown.String(), err)
	}
}

// The console does not know the package that sends notices; this holds its list
// to that one. A test message is sent by its own button.
func TestEveryKindOfNoticeIsOffered(t *testing.T) {
	t.Parallel()
	var want []string
	for _, kind := range notify.Kinds() {
		if kind != notify.WebhookTest {
			want = append(want, string(kind))
		}
	}
	if diff := cmp.Diff(want, slices.Clone(kinds)); diff != "" {
		t.Errorf("the offered kinds differ (-want +got):\n%s", diff)
	}
}
