package httpapi

import (
	"strings"
	"testing"
	"time"

	"countersign/internal/service"
)

// The duration of a delivery is shown in milliseconds.
func TestDurationOfADelivery(t *testing.T) {
	t.Parallel()
	shown := string(appendDelivery(nil, &service.WebhookDelivery{Duration: 1234 * time.Millisecond}))
	if !strings.Contains(shown, `"duration_ms":1234}`) {
		t.Errorf("a delivery of 1.234 s is shown as %s", shown)
	}
}
