package console

import (
	"cmp"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"countersign/internal/fault"
	"countersign/internal/ledger"
	"countersign/internal/service"
)

const keysPage = 50

// keysView is the page of API keys. It also shows the text of a key or a sign-in link that was just
// created.
type keysView struct {
	Keys []*ledger.KeyRecord
	Own  ledger.KeyID // the key of this session
	// First and Next are links to other pages, or "".
	First, Next string
	After       string // the position of this page, which its forms keep; "" for the first
	Now         ledger.Time
	SSO, Slack  bool // what the server has
	Made        *service.NewKey
	Rotated     *service.NewKey
	Link        string       // to sign in
	LinkFor     ledger.KeyID // the key that Link signs in as
	Again       bool         // the form was sent before
	Asked       askedKey
	Refusal     *refusal
	Kept        *keptIdentity // nil: no change of one was refused
}

// keptIdentity is a form that changes who a key is for as it was sent, if it was refused.
type keptIdentity struct {
	Key     ledger.KeyID
	Sent    map[string]string // by the names of its fields
	Refusal *refusal
}

// askedKey is the form for a new key as it was sent, if it was refused.
type askedKey struct{ Name, Role, Owner, SignInAs, SlackMember, Agents, Days string }

func showKeys(v *visit) error {
	caller, err := v.admin()
	if err != nil {
		return err
	}
	return v.showKeys(http.StatusOK, caller, &keysView{})
}

func (v *visit) showKeys(status int, caller *service.Caller, page *keysView) error {
	after, err := v.readID("after")
	if err != nil {
		return err
	}
	keys, err := v.console.service.APIKeys(v.r.Context(), caller, ledger.KeyID{UUID: after}, keysPage+1)
	if err != nil {
		return err
	}
	page.Keys, page.Own, page.Now = keys[:min(len(keys), keysPage)], caller.Key, v.console.service.Now()
	page.SSO, page.Slack = v.console.sso != nil, v.hasSlack()
	page.Asked.Role = cmp.Or(page.Asked.Role, string(ledger.RoleAgent))
	if after != uuid.Nil {
		page.First, page.After = "/api-keys", after.String()
	}
	if len(keys) > keysPage {
		page.Next = "/api-keys?after=" + keys[keysPage-1].ID.String()
	}
	return v.show(status, "api-keys.html", "API keys", page)
}

// createKey answers with a page that shows the key instead of a redirect: it cannot be shown again.
func createKey(v *visit) error {
	caller, err := v.admin()
	if err != nil {
		return err
	}
	sent, err := v.form(maxText)
	if err != nil {
		return err
	}
	page := &keysView{}
	page.Again, err = v.onlyOnce(sent, func() error {
		page.Made, err = v.makeKey(caller, sent)
		return err
	})
	if why := refusalOf(err); why != nil {
		return v.showKeys(why.Status, caller, &keysView{
			Asked: askedKey{
				Name: sent.text("name"), Role: sent.text("role"), Owner: sent.text("owner"), SignInAs: sent.text("sign_in_as"),
				SlackMember: sent.text("slack_member"), Agents: strings.Join(sent.lines("agents"), "\n"), Days: sent.text("days"),
			},
			Refusal: why,
		})
	}
	if err != nil {
		return err
	}
	return v.showKeys(http.StatusCreated, caller, page)
}

// keyForm reads a form of an admin about the key in the path.
func (v *visit) keyForm() (caller *service.Caller, id ledger.KeyID, sent form, err error) {
	if caller, err = v.admin(); err != nil {
		return nil, id, sent, err
	}
	if id.UUID, err = v.pathID("key_id"); err != nil {
		return nil, id, sent, err
	}
	sent, err = v.form(maxForm)
	return caller, id, sent, err
}

// createSignIn answers with a page that shows the link instead of a redirect: it cannot be shown again.
func createSignIn(v *visit) error {
	caller, id, sent, err := v.keyForm()
	if err != nil {
		return err
	}
	page := &keysView{}
	page.Again, err = v.onlyOnce(sent, func() error {
		secret, err := v.console.service.CreateSignIn(v.r.Context(), caller, id)
		page.Link, page.LinkFor = v.here("/sign-in")+"#"+secret.Reveal(), id
		return err
	})
	if err != nil {
		return err
	}
	return v.showKeys(http.StatusCreated, caller, page)
}

func (v *visit) makeKey(caller *service.Caller, sent form) (*service.NewKey, error) {
	members := map[string]any{
		"name": sent.text("name"), "role": optional(sent.text("role")), "owner": optional(sent.text("owner")), "agents": sent.lines("agents"),
		"sign_in_as": optional(sent.text("sign_in_as")), "slack_member": optional(sent.text("slack_member")),
	}
	if days := sent.text("days"); days != "" {
		n, err := strconv.Atoi(days)
		if err != nil || n < 1 || n > 3650 {
			return nil, fault.Errorf(fault.CodeInvalid, "a key can expire after 1 to 3650 days; choose again")
		}
		members["expires_at"] = v.console.service.Now().Add(time.Duration(n) * 24 * time.Hour).String()
	}
	body, err := request(members)
	if err != nil {
		return nil, err
	}
	wanted, err := service.ParseKeyRequest(body)
	if err != nil {
		return nil, err
	}
	return v.console.service.CreateAPIKey(v.r.Context(), caller, wanted)
}

// rotateKey answers with a page that shows the new secret instead of a redirect: it cannot be shown
// again.
func rotateKey(v *visit) error {
	caller, id, sent, err := v.keyForm()
	if err != nil {
		return err
	}
	page := &keysView{}
	page.Again, err = v.onlyOnce(sent, func() error {
		body, err := request(map[string]any{"overlap_seconds": number(sent.text("overlap"))})
		if err != nil {
			return err
		}
		overlap, err := service.ParseOverlap(body)
		if err != nil {
			return err
		}
		page.Rotated, err = v.console.service.RotateAPIKey(v.r.Context(), caller, &service.Rotation{Key: id, Overlap: overlap})
		return err
	})
	if err != nil {
		return err
	}
	return v.showKeys(http.StatusOK, caller, page)
}

// updateKey changes who signs in as a key, or who decides with it in Slack. Each has its own form, so
// that a page from before somebody removed the one does not bring them back with the other.
func updateKey(v *visit) error {
	caller, id, sent, err := v.keyForm()
	if err != nil {
		return err
	}
	kept, members := &keptIdentity{Key: id, Sent: map[string]string{}}, map[string]any{}
	for _, name := range []string{"sign_in_as", "slack_member"} {
		if sent.values.Has(name) {
			kept.Sent[name], members[name] = sent.text(name), optional(sent.text(name))
		}
	}
	body, err := request(members)
	if err != nil {
		return err
	}
	update, err := service.ParseKeyUpdate(body)
	if err == nil {
		update.Key = id
		_, err = v.console.service.UpdateAPIKey(v.r.Context(), caller, update)
	}
	if kept.Refusal = refusalOf(err); kept.Refusal != nil {
		return v.showKeys(kept.Refusal.Status, caller, &keysView{Kept: kept})
	}
	if err != nil {
		return err
	}
	return v.seeKey(id)
}

// seeKey redirects to a key in the list, on the page whose form was sent.
func (v *visit) seeKey(id ledger.KeyID) error {
	after, err := v.readID("after")
	if err != nil {
		return err
	}
	to := url.URL{Path: "/api-keys", Fragment: "key-" + id.String()}
	if after != uuid.Nil {
		to.RawQuery = "after=" + after.String()
	}
	v.seeOther(to.String())
	return nil
}

func revokeKey(v *visit) error {
	caller, err := v.admin()
	if err != nil {
		return err
	}
	id, err := v.pathID("key_id")
	if err != nil {
		return err
	}
	if _, err := v.console.service.RevokeAPIKey(v.r.Context(), caller, ledger.KeyID{UUID: id}); err != nil {
		return err
	}
	return v.seeKey(ledger.KeyID{UUID: id})
}
