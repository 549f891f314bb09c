package sqlite

import (
	"context"
	"encoding/json"
	"fmt"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

const webhookColumns = "id, org_id, url, events, description, secret, created_at, disabled_at, deleted_at, mac, act"

func scanWebhook(rows row) (*store.WebhookRecord, error) {
	var events []byte
	var disabled, deleted *int64
	var w store.WebhookRecord
	err := rows.Scan(&w.ID.UUID, &w.Org.UUID, &w.URL, &events, &w.Description, &w.Secret, (*int64)(&w.CreatedAt), &disabled, &deleted, &w.MAC, &w.Act)
	if err != nil {
		return nil, err
	}
	if json.Unmarshal(events, &w.Events) != nil {
		// Somebody else wrote it. It must not keep the others from being read, and
		// without an authenticator it is refused.
		w.Events, w.MAC = nil, nil
	}
	w.DisabledAt, w.DeletedAt = (*ledger.Time)(disabled), (*ledger.Time)(deleted)
	return &w, nil
}

func (tx *transaction) putWebhook(w *store.WebhookRecord) error {
	events, err := json.Marshal(w.Events)
	if err != nil {
		return fmt.Errorf("encode an endpoint's events: %w", err)
	}
	return tx.exec("INSERT OR REPLACE INTO webhooks ("+webhookColumns+") VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
		w.ID.UUID[:], w.Org.UUID[:], w.URL, events, w.Description, orEmpty(w.Secret), int64(w.CreatedAt),
		momentOrNull(w.DisabledAt), momentOrNull(w.DeletedAt), orEmpty(w.MAC), w.Act)
}

// Webhooks implements store.Governance.
func (s *Store) Webhooks(ctx context.Context, org ledger.OrgID) ([]*store.WebhookRecord, error) {
	query := "SELECT " + webhookColumns + " FROM webhooks WHERE org_id = ? AND deleted_at IS NULL ORDER BY id"
	return readAll(ctx, s, query, []any{org.UUID[:]}, scanWebhook)
}
