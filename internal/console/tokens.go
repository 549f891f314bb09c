package console

import (
	"net/http"
	"net/url"
	"strconv"

	"github.com/google/uuid"

	"countersign/internal/canon"
	"countersign/internal/fault"
	"countersign/internal/ledger"
	"countersign/internal/service"
)

const tokensPage = 50

// shareForm issues a public link for one artifact.
type shareForm struct {
	Artifact string
	ID       uuid.UUID
	// Once makes sending the form again find the same link instead of issuing
	// another.
	Once string
}

// shareForm is nil for those who cannot issue links.
func (v *visit) shareForm(caller *service.Caller, artifact string, id uuid.UUID) *shareForm {
	if !caller.Role.Includes(ledger.RoleAdmin) {
		return nil
	}
	return &shareForm{Artifact: artifact, ID: id, Once: v.id}
}

// tokensView lists the public links, or the shares, and shows one that was just issued.
type tokensView struct {
	Path   string // of the list
	Shares bool
	Off    bool // shares serve nothing at present
	Tokens []tokenRow
	pageLinks
	Issued bool
	Link   string // "" where it was shown before
}

type tokenRow struct {
	*service.Token
	Status string
	Kind   string // of the artifact
	Page   string // of the artifact
}

func showTokens(v *visit) error {
	caller, err := v.admin()
	if err != nil {
		return err
	}
	return v.showTokens(http.StatusOK, caller, &tokensView{})
}

func (v *visit) showTokens(status int, caller *service.Caller, page *tokensView) error {
	page.Path = "/public-links"
	if err := v.loadTokens(caller, page); err != nil {
		return err
	}
	return v.show(status, "public-links.html", "Public links", page)
}

func (v *visit) loadTokens(caller *service.Caller, page *tokensView) error {
	before, err := v.readID("before")
	if err != nil {
		return err
	}
	var place *ledger.TokenID
	if before != uuid.Nil {
		place, page.Newest = &ledger.TokenID{UUID: before}, page.Path
	}
	list := v.console.service.Tokens
	if page.Shares {
		list = v.console.service.Shares
	}
	tokens, err := list(v.r.Context(), caller, place, tokensPage+1)
	if err != nil {
		return err
	}
	if len(tokens) > tokensPage {
		tokens = tokens[:tokensPage]
		page.Older = page.Path + "?before=" + tokens[tokensPage-1].ID.String()
	}
	for _, token := range tokens {
		kind := token.Artifact
		if kind == ledger.ArtifactShare {
			kind = ledger.ArtifactReceipt
		}
		page.Tokens = append(page.Tokens, tokenRow{
			Token: token, Status: service.TokenStatus(token, v.console.service.Now()),
			Kind: kind, Page: "/" + kind + "s/" + token.ArtifactID.String(),
		})
	}
	return nil
}

// issueToken answers with the link itself: it is nowhere to be found later.
func issueToken(v *visit) error {
	caller, err := v.admin()
	if err != nil {
		return err
	}
	sent, err := v.form(maxForm)
	if err != nil {
		return err
	}
	wanted, err := v.readTokenRequest(sent)
	if err != nil {
		return err
	}
	once, err := sent.once()
	if err != nil {
		return err
	}
	_, text, err := v.console.service.IssueToken(v.r.Context(), caller, wanted, once)
	if err != nil {
		return err
	}
	page := &tokensView{Issued: true}
	if text.Reveal() != "" {
		page.Link = v.here("/public/v2/verify/" + text.Reveal())
	}
	return v.showTokens(http.StatusCreated, caller, page)
}

func (v *visit) readTokenRequest(sent form) (*service.TokenRequest, error) {
	members := map[string]any{"artifact_type": sent.text("artifact_type"), "artifact_id": sent.text("artifact_id")}
	body, err := v.tokenBody(sent, members)
	if err != nil {
		return nil, err
	}
	return service.ParseTokenRequest(body)
}

// tokenBody is the request for a link that ends as a form says.
func (v *visit) tokenBody(sent form, members map[string]any) (canon.Value, error) {
	if days := sent.text("days"); days != "" {
		n, err := strconv.Atoi(days)
		if err != nil || n < 1 || n > 3650 {
			return canon.Value{}, fault.Errorf(fault.CodeInvalid, "a link can end after 1 to 3650 days; go back and choose")
		}
		// Counted from the day's beginning, so that a form sent again asks for the same.
		const day = ledger.Time(24 * 60 * 60 * 1000)
		members["expires_at"] = ((v.console.service.Now()/day+1)*day + ledger.Time(n)*day).String()
	}
	return request(members)
}

// here is an address where this browser reaches the server: the others do so too.
func (v *visit) here(path string) string {
	link := url.URL{Scheme: "http", Host: v.r.Host, Path: path}
	if v.console.secure(v.r) {
		link.Scheme = "https"
	}
	return link.String()
}

func revokeToken(v *visit) error {
	caller, err := v.admin()
	if err != nil {
		return err
	}
	id, err := v.pathID("token_id")
	if err != nil {
		return err
	}
	if _, err := v.console.service.RevokeToken(v.r.Context(), caller, ledger.TokenID{UUID: id}, ""); err != nil {
		return err
	}
	v.seeOther("/public-links")
	return nil
}
