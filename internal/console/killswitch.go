package console

import (
	"net/http"

	"countersign/internal/fault"
	"countersign/internal/ledger"
	"countersign/internal/service"
)

// killSwitchPage is the page on which admins stop all agents or let them continue.
type killSwitchPage struct {
	ledger.KillSwitch
	Typed   string // the reason as it was sent, if it was refused
	Refusal *refusal
}

func showKillSwitch(v *visit) error {
	if _, err := v.member(); err != nil {
		return err
	}
	return v.showSwitch(http.StatusOK, "", nil)
}

func (v *visit) showSwitch(status int, typed string, why *refusal) error {
	page := killSwitchPage{KillSwitch: v.organization.Controls.KillSwitch, Typed: typed, Refusal: why}
	return v.show(status, "kill-switch.html", "Kill switch", page)
}

func activateKillSwitch(v *visit) error {
	return v.confirmSwitch(func(caller *service.Caller, sent form) error {
		body, err := request(map[string]any{"reason": sent.text("reason")})
		if err != nil {
			return err
		}
		reason, err := service.ParseKillSwitchReason(body)
		if err != nil {
			return err
		}
		_, err = v.console.service.ActivateKillSwitch(v.r.Context(), caller, reason)
		return err
	})
}

func deactivateKillSwitch(v *visit) error {
	return v.confirmSwitch(func(caller *service.Caller, sent form) error {
		// A page from before an update of the server does not say what its reader has seen.
		seen, err := ledger.ParseTime(sent.text("since"))
		if err != nil {
			seen = 0
		}
		_, err = v.console.service.EndActivation(v.r.Context(), caller, seen)
		if codeOf(err) == fault.CodeKillSwitchActive {
			err = fault.Errorf(fault.CodeKillSwitchActive, "nothing was changed, because the kill switch may have been activated again after you opened this page: read the reason below, and confirm again to deactivate it")
		}
		return err
	})
}

// confirmSwitch calls turn only if the form is confirmed, because a mistake stops all agents or lets
// all of them continue.
func (v *visit) confirmSwitch(turn func(*service.Caller, form) error) error {
	caller, err := v.admin()
	if err != nil {
		return err
	}
	sent, err := v.form(maxText)
	if err != nil {
		return err
	}
	if sent.text("confirm") == "yes" {
		err = turn(caller, sent)
	} else {
		err = fault.Errorf(fault.CodeInvalid, "nothing was changed: tick the box to confirm")
	}
	if why := refusalOf(err); why != nil {
		return v.showSwitch(why.Status, sent.text("reason"), why)
	}
	if err != nil {
		return err
	}
	v.seeOther("/kill-switch")
	return nil
}
