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
	action, kind, govern := "kill_switch.deactivate", notify.KillSwitchDeactivated, s.govern
	if active {
		action, kind, govern = "kill_switch.activate", notify.KillSwitchActivated, s.governStop
	}
	var result ledger.KillSwitch
	err := govern(ctx, caller, func(b *batch, org *ledger.Organization) (*deed, error) {
		k := &org.Controls.KillSwitch
		if k.Active != active {
			now := b.now
			*k = ledger.KillSwitch{Active: active, Reason: reason, ChangedAt: &now, ChangedBy: caller.Name}
			b.notice(org, notify.Notice{Kind: kind, Reviewer: caller.Name}, "")
			result = *k
			return &deed{action: action, detail: details(func(w *canon.ObjectWriter) { w.StringOrNull("reason", reason) })}, nil
		}
		result = *k
		return nil, nil
	})
	if err != nil {
		return nil, err
	}
	return &result, nil
}
