package service

import (
	"context"

	"countersign/internal/canon"
	"countersign/internal/ledger"
	"countersign/internal/notify"
)

// KillSwitch tells whether the caller's organization is stopped.
func (s *Service) KillSwitch(ctx context.Context, caller *Caller) (*ledger.KillSwitch, error) {
	org, err := s.Organization(ctx, caller)
	if err != nil {
		return nil, err
	}
	return &org.Controls.KillSwitch, nil
}

// ParseKillSwitchReason reads the body of a request that activates the switch.
func ParseKillSwitchReason(v canon.Value) (string, error) {
	f := ledger.NewFields(v)
	reason := f.RequiredName("reason", 500)
	return reason, f.Err()
}

// ActivateKillSwitch stops everything: when it returns, no replica allows an
// action any more, for it has waited for those that were being recorded, and no
// client begins one that was allowed before, for it has waited for their leases.
// Sent again it changes nothing, and the first reason stands.
func (s *Service) ActivateKillSwitch(ctx context.Context, caller *Caller, reason string) (*ledger.KillSwitch, error) {
	return s.switchTo(ctx, caller, true, reason)
}

// DeactivateKillSwitch lets agents act again. Repeating it changes nothing.
func (s *Service) DeactivateKillSwitch(ctx context.Context, caller *Caller) (*ledger.KillSwitch, error) {
	return s.switchTo(ctx, caller, false, "")
}

func (s *Service) switchTo(ctx context.Context, caller *Caller, active bool, reason string) (*ledger.KillSwitch, error) {
	action, kind, govern := ledger.ActKillSwitchDeactivate, notify.KillSwitchDeactivated, s.govern
	if active {
		action, kind, govern = ledger.ActKillSwitchActivate, notify.KillSwitchActivated, s.governStop
	}
	var result ledger.KillSwitch
	err := govern(ctx, caller, func(b *batch, org *ledger.Organization) (*deed, error) {
		k := &org.Controls.KillSwitch
		if k.Active != active {
			now, before := b.now, *k
			*k = ledger.KillSwitch{Active: active, Reason: reason, ChangedAt: &now, ChangedBy: caller.Name}
			b.notice(org, notify.Notice{Kind: kind, Reviewer: caller.Name}, "")
			result = *k
			return killSwitchDeed(action, &before, k), nil
		}
		result = *k
		return nil, nil
	})
	if err != nil {
		return nil, err
	}
	return &result, nil
}

// killSwitchDeed says why the switch is active, or what it was active for.
func killSwitchDeed(action string, before, after *ledger.KillSwitch) *deed {
	word := func(k *ledger.KillSwitch) string {
		if k.Active {
			return "active"
		}
		return "inactive"
	}
	return &deed{action: action, detail: details(func(w *canon.ObjectWriter) {
		if before.Active {
			w.StringOrNull("activated_at", moment(before.ChangedAt))
			w.StringOrNull("activated_by", before.ChangedBy)
			w.StringOrNull("activated_for", before.Reason)
		} else {
			w.StringOrNull("reason", after.Reason)
		}
		moved(w, "status", word(before), word(after))
	})}
}
