package console

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/google/uuid"

	"countersign/internal/canon"
	"countersign/internal/fault"
	"countersign/internal/ledger"
	"countersign/internal/service"
)

const tokensPage = 50

// shareForm is the form to issue a public link for an artifact.
type shareForm struct {
	Artifact string
	ID       uuid.UUID
	// Once identifies the page, so that a form sent twice does not issue two links.
	Once string
}

// shareForm returns nil unless the caller is an admin.
func (v *visit) shareForm(caller *service.Caller, artifact string, id uuid.UUID) *shareForm {
	if !caller.Role.Includes(ledger.RoleAdmin) {
		return nil
	}
	return &shareForm{Artifact: artifact, ID: id, Once: v.id}
}

// linkKind is a kind of public link. Both kinds are tokens to the service, and have the same page.
type linkKind struct {
	path   string // of the page
	title  string
	public string // the public path, to which the link's text is appended
	shares bool
}

var (
	tokenLink = linkKind{path: "/public-links", title: "Public links", public: "/public/v2/verify/"}
	shareLink = linkKind{path: "/public-links/shares", title: "Shares", public: "/public/shares/", shares: true}
)

// linksView lists the links of a kind, and shows one that was just issued.
type linksView struct {
	Path   string // of the list
	Shares bool
	Off    bool // the links work only when an admin allows exports again
	Tokens []tokenRow
	pageLinks
	Issued bool
	Link   string // "" if it was shown before
}

type tokenRow struct {
	*service.Token
	Status string
	Kind   string // of the artifact
	Page   string // of the artifact
}

func showTokens(v *visit) error { return v.showLinks(&tokenLink) }

func showShares(v *visit) error { return v.showLinks(&shareLink) }

func (v *visit) showLinks(kind *linkKind) error {
	caller, err := v.admin()
	if err != nil {
		return err
	}
	return v.linksPage(http.StatusOK, caller, kind, &linksView{})
}

func (v *visit) linksPage(status int, caller *service.Caller, kind *linkKind, page *linksView) error {
	page.Path, page.Shares, page.Off = kind.path, kind.shares, kind.shares && !v.exports()
	if err := v.loadTokens(caller, page); err != nil {
		return err
	}
	return v.show(status, "public-links.html", kind.title, page)
}

func (v *visit) loadTokens(caller *service.Caller, page *linksView) error {
	before, err := v.readID("before")
	if err != nil {
		return err
	}
	var from *ledger.TokenID
	if before != uuid.Nil {
		from, page.Newest = &ledger.TokenID{UUID: before}, page.Path
	}
	list := v.console.service.Tokens
	if page.Shares {
		list = v.console.service.Shares
	}
	tokens, err := list(v.r.Context(), caller, from, tokensPage+1)
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

func issueToken(v *visit) error {
	return v.issueLink(&tokenLink, service.ParseTokenRequest, v.console.service.IssueToken, "artifact_type", "artifact_id")
}

func createShare(v *visit) error {
	return v.issueLink(&shareLink, service.ParseShareRequest, v.console.service.Share, "receipt_id")
}

// issueLink answers with a page that shows the link instead of a redirect: it cannot be shown
// again. members are the form's fields that name the artifact, and the members of the request.
func (v *visit) issueLink(
	kind *linkKind, parse func(canon.Value) (*service.TokenRequest, error),
	issue func(ctx context.Context, caller *service.Caller, request *service.TokenRequest, key string) (*service.Token, ledger.Secret, error),
	members ...string,
) error {
	caller, err := v.admin()
	if err != nil {
		return err
	}
	sent, err := v.form(maxForm)
	if err != nil {
		return err
	}
	body, err := v.linkRequest(sent, members)
	if err != nil {
		return err
	}
	wanted, err := parse(body)
	if err != nil {
		return err
	}
	once, err := sent.once()
	if err != nil {
		return err
	}
	// A page can have forms for both kinds, and a form can be sent again with another expiry.
	_, text, err := issue(v.r.Context(), caller, wanted, formID(once, kind.path, sent.text("days")))
	if err != nil {
		return err
	}
	page := &linksView{Issued: true}
	if text.Reveal() != "" {
		page.Link = v.here(kind.public + text.Reveal())
	}
	return v.linksPage(http.StatusCreated, caller, kind, page)
}

// linkRequest builds the API request for a link from a form.
func (v *visit) linkRequest(sent form, names []string) (canon.Value, error) {
	members := make(map[string]any)
	for _, name := range names {
		members[name] = sent.text(name)
	}
	if days := sent.text("days"); days != "" {
		n, err := strconv.Atoi(days)
		if err != nil || n < 1 || n > 3650 {
			return canon.Value{}, fault.Errorf(fault.CodeInvalid, "a link can expire after 1 to 3650 days; go back and choose")
		}
		// Count from the end of the day, so that a form sent again asks for the same expiry.
		const day = 24 * time.Hour
		members["expires_at"] = v.console.service.Now().Truncate(day).Add(time.Duration(n+1) * day).String()
	}
	return request(members)
}

// here returns the full address of a path on this server: below the public URL, or with the host name of
// the request if there is none.
func (v *visit) here(path string) string {
	if v.console.public != "" {
		return v.console.public + path
	}
	link := url.URL{Scheme: "http", Host: v.r.Host, Path: path}
	if v.console.secure(v.r) {
		link.Scheme = "https"
	}
	return link.String()
}

func revokeToken(v *visit) error { return v.revokeLink(&tokenLink, v.console.service.RevokeToken) }

func revokeShare(v *visit) error { return v.revokeLink(&shareLink, v.console.service.RevokeShare) }

func (v *visit) revokeLink(
	kind *linkKind, revoke func(ctx context.Context, caller *service.Caller, id ledger.TokenID, reason string) (*service.Token, error),
) error {
	caller, err := v.admin()
	if err != nil {
		return err
	}
	id, err := v.pathID("token_id")
	if err != nil {
		return err
	}
	if _, err := revoke(v.r.Context(), caller, ledger.TokenID{UUID: id}, ""); err != nil {
		return err
	}
	v.seeOther(kind.path)
	return nil
}
