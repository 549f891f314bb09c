package httpapi

import (
	"net/http"

	"countersign/internal/canon"
	"countersign/internal/ledger"
	"countersign/internal/service"
)

func getKillSwitch(x *exchange) error {
	state, err := x.api.service.KillSwitch(x.r.Context(), x.caller)
	if err != nil {
		return err
	}
	return x.answer(http.StatusOK, appendKillSwitch(nil, state))
}

func activateKillSwitch(x *exchange) error {
	reason, err := parsed(x, service.ParseKillSwitchReason)
	if err != nil {
		return err
	}
	state, err := x.api.service.ActivateKillSwitch(x.r.Context(), x.caller, reason)
	if err != nil {
		return err
	}
	return x.answer(http.StatusOK, appendKillSwitch(nil, state))
}

func deactivateKillSwitch(x *exchange) error {
	state, err := x.api.service.DeactivateKillSwitch(x.r.Context(), x.caller)
	if err != nil {
		return err
	}
	return x.answer(http.StatusOK, appendKillSwitch(nil, state))
}

func appendKillSwitch(dst []byte, k *ledger.KillSwitch) []byte {
	w := canon.BeginObject(dst)
	w.Bool("active", k.Active)
	w.StringOrNull("reason", k.Reason)
	appendTime(&w, "changed_at", k.ChangedAt)
	w.StringOrNull("changed_by", k.ChangedBy)
	return w.End()
}

// listActs lists the stored bytes of the audit log's entries. An entry that was tampered with shows
// only its number and that it failed.
func listActs(x *exchange) error {
	q := x.query()
	limit, before := q.limit(), q.numberCursor(actCursor)
	if err := q.err(); err != nil {
		return err
	}
	acts, err := x.api.service.Acts(x.r.Context(), x.caller, before, limit)
	if err != nil {
		return err
	}
	cursor := func(a *ledger.StoredAct) string { return encodeNumberCursor(actCursor, a.Sequence) }
	return list(x, acts, limit, cursor, func(dst []byte, a *ledger.StoredAct) []byte {
		if a.Tampered {
			w := canon.BeginObject(dst)
			w.Int("sequence", a.Sequence)
			w.String("integrity", string(ledger.IntegrityFailed))
			return w.End()
		}
		return append(dst, a.Body...)
	})
}
