package console

import (
	"net/http"

	"countersign/internal/fault"
	"countersign/internal/service"
)

// packView is the page of a built-in policy pack.
type packView struct {
	*service.PolicyView
	Name    string
	Offered bool // the pack can be put in force, because the organization has no policy set
	Refusal *refusal
}

func showPack(v *visit) error {
	caller, err := v.member()
	if err != nil {
		return err
	}
	return v.showPack(http.StatusOK, caller, nil)
}

func (v *visit) showPack(status int, caller *service.Caller, why *refusal) error {
	name := v.r.PathValue("pack")
	set, err := v.console.service.PolicyPack(v.r.Context(), caller, name)
	if err != nil {
		return err
	}
	return v.show(status, "pack.html", "The "+name+" policies", &packView{
		PolicyView: set, Name: name, Offered: v.hasNoPolicy() && why == nil, Refusal: why,
	})
}

// hasNoPolicy reports whether the organization has no policy set.
func (v *visit) hasNoPolicy() bool { return v.organization.Controls.Policy.Number == 0 }

// putPack puts a pack in force. The form has no fields, because the pack is part of the program.
func putPack(v *visit) error {
	caller, err := v.admin()
	if err != nil {
		return err
	}
	_, err = v.console.service.PutFirstPolicyPack(v.r.Context(), caller, v.r.PathValue("pack"))
	if codeOf(err) == fault.CodePolicyChanged {
		why := refusalOf(err)
		return v.showPack(why.Status, caller, why)
	}
	if err != nil {
		return err
	}
	v.seeOther("/policies")
	return nil
}
