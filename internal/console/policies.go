package console

import (
	"net/http"
	"strconv"
	"strings"

	"countersign/internal/fault"
	"countersign/internal/service"
)

const (
	policiesPage = 20
	// maxPolicyForm is the size of a form with the largest policy set, in bytes. The encoding of a
	// form takes up to six bytes for a character of one byte, the end of a line.
	maxPolicyForm = 6*256<<10 + maxForm
)

// policiesView is the page of policies: the set in force, its predecessors and the form for a new one.
type policiesView struct {
	Version string
	InForce *service.PolicyView // nil if only the built-in rules apply
	Sets    []*service.PolicyView
	pageLinks
	Draft draft
}

// draft is a set that is being written.
type draft struct {
	Text     string
	JSON     bool
	Replaces string // the number of the set that was in force when the draft was begun
	// Overtaken says that another set was put in force since.
	Overtaken bool
	Refusal   *refusal // what is wrong with it
	Checked   *service.PolicyView
}

func showPolicies(v *visit) error {
	caller, err := v.member()
	if err != nil {
		return err
	}
	return v.showPolicies(http.StatusOK, caller, draft{})
}

func (v *visit) showPolicies(status int, caller *service.Caller, d draft) error {
	before, err := readPosition(v.r.URL.Query(), "before")
	if err != nil {
		return err
	}
	sets, current, err := v.console.service.Policies(v.r.Context(), caller, before, policiesPage+1)
	if err != nil {
		return err
	}
	page := &policiesView{Version: current.Version, Sets: sets[:min(len(sets), policiesPage)], Draft: d}
	if len(sets) > policiesPage {
		page.Older = positionLink("/policies", sets[policiesPage-1].Number)
	}
	if before != 0 {
		page.Newest = "/policies"
	}
	if !strings.HasPrefix(current.Version, "v0+") {
		if page.InForce, err = v.console.service.Policy(v.r.Context(), caller, current.Version); err != nil {
			return err
		}
		if d == (draft{}) { // a new set starts as a copy of the current one
			page.Draft = draft{Text: string(page.InForce.Document), JSON: page.InForce.Format == "json"}
		}
	}
	if page.Draft.Replaces == "" {
		page.Draft.Replaces = strconv.FormatInt(v.organization.Controls.Policy.Number, 10)
	}
	return v.show(status, "policies.html", "Policies", page)
}

// showPolicy shows one version of the policy set, whether it is in force or not.
func showPolicy(v *visit) error {
	caller, err := v.member()
	if err != nil {
		return err
	}
	set, err := v.console.service.Policy(v.r.Context(), caller, v.r.PathValue("version"))
	if codeOf(err) == fault.CodeNotFound {
		return fault.Errorf(fault.CodeNotFound, "your organization has no policy set with this version")
	}
	if err != nil {
		return err
	}
	return v.show(http.StatusOK, "policy.html", "Policy "+set.Version, set)
}

func checkPolicy(v *visit) error {
	return v.takePolicy(func(caller *service.Caller, document *service.PolicyDocument, _ string) (*service.PolicyView, error) {
		set, err := v.console.service.CheckPolicy(v.r.Context(), caller, document)
		if err != nil {
			return nil, err
		}
		return &service.PolicyView{Rules: set.Rules()}, nil
	})
}

func putPolicy(v *visit) error {
	return v.takePolicy(func(caller *service.Caller, document *service.PolicyDocument, replaces string) (*service.PolicyView, error) {
		number, err := strconv.ParseInt(replaces, 10, 64)
		if err != nil {
			return nil, errBadForm
		}
		_, err = v.console.service.ReplacePolicy(v.r.Context(), caller, document, number)
		return nil, err
	})
}

// takePolicy passes the draft of a form to use, with what it replaces. If use returns a checked set, the
// page shows it; otherwise the draft was put in force.
func (v *visit) takePolicy(use func(caller *service.Caller, document *service.PolicyDocument, replaces string) (*service.PolicyView, error)) error {
	caller, err := v.admin()
	if err != nil {
		return err
	}
	sent, err := v.form(maxPolicyForm)
	if err != nil {
		return err
	}
	// Problems name lines and columns of the text as it was typed, so do not trim it.
	d := draft{Text: strings.ReplaceAll(sent.values.Get("document"), "\r\n", "\n"), JSON: sent.text("format") == "json", Replaces: sent.text("replaces")}
	if d.Replaces == "" {
		err = fault.Errorf(fault.CodePolicyChanged, "this page was from before an update of the server, and does not say which set you have seen: read the rules above, and send yours again")
	} else {
		d.Checked, err = use(caller, &service.PolicyDocument{Text: []byte(d.Text), YAML: !d.JSON}, d.Replaces)
		if codeOf(err) == fault.CodePolicyChanged {
			err = fault.Errorf(fault.CodePolicyChanged, "somebody put another set in force after you opened this page, and it was not replaced: read its rules above, and take what "+
				"you need of them into yours. Putting yours in force again replaces it")
		}
	}
	if codeOf(err) == fault.CodePolicyChanged {
		d.Overtaken, d.Replaces = true, "" // the page shows the set in force, which the next draft replaces
	}
	if d.Refusal = refusalOf(err); d.Refusal != nil {
		return v.showPolicies(d.Refusal.Status, caller, d)
	}
	if err != nil {
		return err
	}
	if d.Checked != nil {
		return v.showPolicies(http.StatusOK, caller, d)
	}
	v.seeOther("/policies")
	return nil
}
