package servicetest

import (
	"context"
	"net/http"
	"time"

	"countersign/internal/notify"
)

// Receiver is a deliverer that accepts every message without using the network.
type Receiver struct{}

// Deliver implements service.Deliverer.
func (Receiver) Deliver(context.Context, notify.Endpoint, string, time.Time, []byte) (int, error) {
	return http.StatusNoContent, nil
}
