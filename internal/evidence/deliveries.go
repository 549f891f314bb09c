package evidence

import (
	"context"
	"errors"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

func encodeDelivery(d *store.DeliveryRecord) []byte {
	r := make(record, 0, 512+len(d.Notice))
	r.bytes(d.ID.UUID[:])
	r.bytes(d.Org.UUID[:])
	r.bytes(d.Webhook.UUID[:])
	r.text(d.MessageID)
	r.text(d.Kind)
	r.text(d.Trigger)
	r.int(d.Attempt)
	r.text(d.State)
	r.int(d.Code)
	r.text(d.Class)
	r.text(d.Error)
	r.time(d.At)
	r.int(d.Duration.Milliseconds())
	r.bytes(d.Notice)
	return r
}

func (s *Store) checkDelivery(d *store.DeliveryRecord) error {
	return s.check("a delivery", d.Org, ledger.PurposeDelivery, d.MAC, encodeDelivery(d))
}

// AddDelivery implements store.Deliveries.
func (s *Store) AddDelivery(ctx context.Context, d *store.DeliveryRecord, keep int, since ledger.Time) error {
	if s.keys == nil {
		return errNoKeys
	}
	d.MAC = s.seal(d.Org, ledger.PurposeDelivery, encodeDelivery(d))
	return s.port.AddDelivery(ctx, d, keep, since)
}

// Delivery implements store.Deliveries. The result is authentic, so the caller may send it again.
func (s *Store) Delivery(ctx context.Context, id ledger.DeliveryID) (*store.DeliveryRecord, error) {
	d, err := s.port.Delivery(ctx, id)
	if err == nil {
		err = s.checkDelivery(d)
	}
	if err != nil {
		return nil, err
	}
	return d, nil
}

// Deliveries implements store.Deliveries. A row that fails is reduced to its ids and marked as
// tampered.
func (s *Store) Deliveries(ctx context.Context, query store.DeliveryQuery) ([]*store.DeliveryRecord, error) {
	deliveries, err := s.port.Deliveries(ctx, query)
	if err != nil {
		return nil, err
	}
	for i, d := range deliveries {
		if err := s.checkDelivery(d); errors.Is(err, ledger.ErrStateTampered) {
			deliveries[i] = &store.DeliveryRecord{ID: d.ID, Org: d.Org, Webhook: d.Webhook, Tampered: true}
		} else if err != nil {
			return nil, err
		}
	}
	return deliveries, nil
}
