package httpapi

import (
	"encoding/json"
	"net/http"

	"countersign/internal/ledger"
	"countersign/internal/service"
)

func getOrganization(x *exchange) error {
	org, err := x.api.service.Organization(x.r.Context(), x.caller)
	if err != nil {
		return err
	}
	return x.organization(org)
}

func patchOrganization(x *exchange) error {
	body, err := x.body()
	if err != nil {
		return err
	}
	org, err := x.api.service.UpdateOrganization(x.r.Context(), x.caller, body)
	if err != nil {
		return err
	}
	return x.organization(org)
}

func (x *exchange) organization(org *ledger.Organization) error {
	settings := org.Settings
	settings.FastPathActions, settings.AbandonAfterHours = settings.SafeActions(), settings.AbandonHours()
	settings.EvidenceExport = settings.Exports()
	settings.Budgets = append([]ledger.Budget{}, settings.Budgets...) // encode none as [], not null
	var channel *string
	if settings.SlackChannel != "" {
		channel = &settings.SlackChannel
	}
	body, err := encode(struct {
		Slug      string `json:"slug"`
		Name      string `json:"name"`
		CreatedAt string `json:"created_at"`
		ledger.Settings
		SlackChannel  *string         `json:"slack_channel"` // null for none
		PolicyVersion string          `json:"policy_version"`
		KillSwitch    json.RawMessage `json:"kill_switch"`
	}{org.Slug, org.Name, org.CreatedAt.String(), settings, channel, org.PolicyVersion(), appendKillSwitch(nil, &org.Controls.KillSwitch)})
	if err != nil {
		return err
	}
	return x.answer(http.StatusOK, body)
}

func listKeys(x *exchange) error {
	q := x.query()
	limit := q.limit()
	after, _ := q.idCursor(keyCursor)
	if err := q.err(); err != nil {
		return err
	}
	keys, err := x.api.service.APIKeys(x.r.Context(), x.caller, ledger.KeyID{UUID: after}, limit)
	if err != nil {
		return err
	}
	cursor := func(k *ledger.KeyRecord) string { return encodeIDCursor(keyCursor, k.ID.UUID) }
	return list(x, keys, limit, cursor, func(dst []byte, k *ledger.KeyRecord) []byte {
		return x.appendKey(dst, k, ledger.Secret{})
	})
}

func createKey(x *exchange) error {
	request, err := parsed(x, service.ParseKeyRequest)
	if err != nil {
		return err
	}
	key, err := x.api.service.CreateAPIKey(x.r.Context(), x.caller, request)
	if err != nil {
		return err
	}
	return x.answer(http.StatusCreated, x.appendKey(nil, key.Record, key.Text))
}

func updateKey(x *exchange) error {
	id, err := x.pathID("key_id")
	if err != nil {
		return err
	}
	update, err := parsed(x, service.ParseKeyUpdate)
	if err != nil {
		return err
	}
	update.Key = ledger.KeyID{UUID: id}
	key, err := x.api.service.UpdateAPIKey(x.r.Context(), x.caller, update)
	if err != nil {
		return err
	}
	return x.answer(http.StatusOK, x.appendKey(nil, key, ledger.Secret{}))
}

func revokeKey(x *exchange) error {
	id, err := x.pathID("key_id")
	if err != nil {
		return err
	}
	key, err := x.api.service.RevokeAPIKey(x.r.Context(), x.caller, ledger.KeyID{UUID: id})
	if err != nil {
		return err
	}
	return x.answer(http.StatusOK, x.appendKey(nil, key, ledger.Secret{}))
}

// rotateKey answers with the new text. If the idempotency key was used before, the text cannot be
// shown again, and the answer omits it.
func rotateKey(x *exchange) error {
	id, err := x.pathID("key_id")
	if err != nil {
		return err
	}
	idempotencyKey, err := x.idempotencyKey()
	if err != nil {
		return err
	}
	overlap, err := parsedOptional(x, service.ParseOverlap)
	if err != nil {
		return err
	}
	key, err := x.api.service.RotateAPIKey(x.r.Context(), x.caller,
		&service.Rotation{Key: ledger.KeyID{UUID: id}, Overlap: overlap, IdempotencyKey: idempotencyKey})
	if err != nil {
		return err
	}
	return x.answer(http.StatusOK, x.appendKey(nil, key.Record, key.Text))
}
