package console

import (
	"cmp"
	"fmt"
	"net/http"
	"net/url"
	"slices"

	"countersign/internal/fault"
	"countersign/internal/ledger"
	"countersign/internal/service"
)

const (
	approvalsPage = 20
	maxWaiting    = 50
)

// approvalsList is the page of approvals. Without a filter, it lists those that wait and then those
// decided recently.
type approvalsList struct {
	Now         ledger.Time
	Filter      string
	Filters     []filterLink
	Search      *searchBox
	NoRecipient *service.NoRecipient // nil unless the caller is an admin and escalations reach nobody
	Waiting     waitingList
	Rows        []approvalRow
	// Imported says that there are imported approvals, which have their own page.
	Imported bool
	pageLinks
}

// filterLink is a link to the approvals of one status.
type filterLink struct {
	Name, Link string
	Here       bool
}

// approvalRow is an approval in a list.
type approvalRow struct {
	*service.ApprovalView
	// ChainName and Environment are "" for agents, who see no chains, and if the chain cannot be
	// read.
	ChainName, Environment string
	Recipients             recipients
	// Unread says that there is no payload to find recipients in: it is too large for a list, or it
	// was erased.
	Unread bool
}

// rowOf returns the row of an approval. It drops the payload, of which the row shows only the
// recipients.
func rowOf(view *service.ApprovalView) approvalRow {
	row := approvalRow{ApprovalView: view, Recipients: findRecipients(view.Payload), Unread: view.Payload == nil}
	view.Payload, view.Redactions = nil, nil
	return row
}

// Payee returns the first recipient, or "" if the payload names none.
func (r approvalRow) Payee() string {
	if r.Recipients.First == "" {
		return ""
	}
	return agentText(r.Recipients.First).Text
}

// waitingList lists the approvals that wait for a person, the most urgent first.
type waitingList struct {
	Rows []approvalRow
	Over bool // there are more
	// Alarm is shown instead of rows that were tampered with.
	Alarm string
}

// title adds the number of waiting approvals to a title, so that it shows in a background tab.
func (l waitingList) title(text string) string {
	switch {
	case len(l.Rows) == 0:
		return text
	case l.Over:
		return fmt.Sprintf("(%d+) %s", len(l.Rows), text)
	default:
		return fmt.Sprintf("(%d) %s", len(l.Rows), text)
	}
}

const filterAll = "all"

func showApprovals(v *visit) error {
	caller, err := v.signedIn()
	if err != nil {
		return err
	}
	query := v.r.URL.Query()
	page := &approvalsList{Now: v.console.service.Now(), Filter: query.Get("status"), Search: readSearch(query, "/approvals", "approval", false)}
	page.Search.Status = page.Filter
	if page.Search.Searching() && page.Filter == "" {
		page.Filter = filterAll
	}
	if err := page.setFilters(); err != nil {
		return err
	}
	if page.Search.Fault != "" {
		return v.showApprovals(http.StatusUnprocessableEntity, page)
	}
	if page.NoRecipient, err = v.noRecipient(caller); err != nil {
		return err
	}
	filter := service.ApprovalFilter{Limit: approvalsPage + 1, Bare: true, Glance: true}
	if filter.Before, err = readApprovalPlace(query); err != nil {
		return err
	}
	if page.Filter == "" {
		if page.Waiting, err = v.waiting(caller); err != nil {
			return err
		}
	} else if page.Filter != filterAll {
		filter.Status = ledger.ApprovalStatus(page.Filter)
	}
	if page.Search.Searching() {
		err = v.findApprovals(caller, page, filter)
	} else {
		err = v.listApprovals(caller, page, filter)
	}
	if err != nil {
		return err
	}
	if err := v.nameChains(caller, page.Rows); err != nil {
		return err
	}
	if page.Imported, err = v.hasImported(caller); err != nil {
		return err
	}
	return v.showApprovals(http.StatusOK, page)
}

func (v *visit) showApprovals(status int, page *approvalsList) error {
	v.allowPolling()
	return v.show(status, "approvals.html", page.Waiting.title("Approvals"), page)
}

func (v *visit) listApprovals(caller *service.Caller, page *approvalsList, filter service.ApprovalFilter) error {
	rows, err := v.console.service.Approvals(v.r.Context(), caller, filter)
	if err != nil {
		return err
	}
	page.addRows(rows, filter.Before != nil)
	return nil
}

// findApprovals lists the approvals that match a search.
func (v *visit) findApprovals(caller *service.Caller, page *approvalsList, filter service.ApprovalFilter) error {
	turned := filter.Before != nil
	filter.Limit = approvalsPage
	found, err := v.console.service.FindApprovals(v.r.Context(), caller, &service.ApprovalSearch{Find: page.Search.find, ApprovalFilter: filter})
	if err != nil {
		return err
	}
	page.addRows(found.Items, turned)
	if found.Next != nil {
		page.Older = page.link(page.Filter, found.Next)
	}
	return nil
}

// link returns the address of the list for a status, with the current search.
func (p *approvalsList) link(status string, before *service.ApprovalPlace) string {
	return approvalsLink(status, before, p.Search.Text)
}

// setFilters adds the links to the statuses. The list of what waits combines two statuses, and a search
// lists one: it offers each of the two.
func (p *approvalsList) setFilters() error {
	open := []string{string(ledger.ApprovalPending), string(ledger.ApprovalEscalated)}
	settled := []string{string(ledger.ApprovalApproved), string(ledger.ApprovalDenied), string(ledger.ApprovalTimedOut), string(ledger.ApprovalCancelled), filterAll}
	var names []string
	if !p.Search.Searching() {
		names = append(names, "")
	}
	if p.Search.Searching() || slices.Contains(open, p.Filter) {
		names = append(names, open...)
	}
	names = append(names, settled...)
	for _, name := range names {
		p.Filters = append(p.Filters, filterLink{Name: cmp.Or(name, "waiting"), Link: p.link(name, nil), Here: name == p.Filter})
	}
	if !slices.Contains(names, p.Filter) {
		return fault.Errorf(fault.CodeInvalid, "this address has no valid status; go back to the list of approvals")
	}
	return nil
}

// addRows adds the rows of one page. Without a filter it skips open approvals, which are in Waiting.
// turned says that this is not the first page.
func (p *approvalsList) addRows(rows []*service.ApprovalView, turned bool) {
	if len(rows) > approvalsPage {
		rows = rows[:approvalsPage]
		last := rows[approvalsPage-1]
		p.Older = p.link(cmp.Or(p.Filter, filterAll), &service.ApprovalPlace{RequestedAt: last.RequestedAt, ID: last.ID})
	}
	if turned {
		p.Newest = p.link(p.Filter, nil)
	}
	for _, row := range rows {
		if p.Filter != "" || !row.Status.Open() {
			p.Rows = append(p.Rows, rowOf(row))
		}
	}
}

func approvalsLink(status string, before *service.ApprovalPlace, search string) string {
	query := make(url.Values)
	if search != "" {
		query.Set("q", search)
	}
	if status != "" {
		query.Set("status", status)
	}
	if before != nil {
		query.Set("before", before.RequestedAt.String())
		query.Set("before_id", before.ID.String())
	}
	return (&url.URL{Path: "/approvals", RawQuery: query.Encode()}).String()
}

func readApprovalPlace(query url.Values) (*service.ApprovalPlace, error) {
	if query.Get("before") == "" && query.Get("before_id") == "" {
		return nil, nil
	}
	at, err := ledger.ParseTime(query.Get("before"))
	if err != nil {
		return nil, errPosition
	}
	id, err := ledger.ParseID(query.Get("before_id"))
	if err != nil {
		return nil, errPosition
	}
	return &service.ApprovalPlace{RequestedAt: at, ID: ledger.ApprovalID{UUID: id}}, nil
}

// listWaiting lists the approvals that a person can still decide, without the names of their chains.
func (v *visit) listWaiting(caller *service.Caller) (list waitingList, err error) {
	rows, err := v.console.service.WaitingApprovals(v.r.Context(), caller, maxWaiting+1)
	if err != nil {
		return waitingList{}, err
	}
	list.Over = len(rows) > maxWaiting
	for _, row := range rows[:min(len(rows), maxWaiting)] {
		if row.Tampered {
			v.report(http.StatusInternalServerError, fault.CodeEvidenceTampered, service.ErrTampered)
			list.Alarm = waitingAlarm
		} else if row.Status.Open() { // it can expire meanwhile
			list.Rows = append(list.Rows, rowOf(row))
		}
	}
	return list, nil
}

// waiting is listWaiting with the names of the chains.
func (v *visit) waiting(caller *service.Caller) (waitingList, error) {
	list, err := v.listWaiting(caller)
	if err != nil {
		return waitingList{}, err
	}
	return list, v.nameChains(caller, list.Rows)
}

// nameChains sets the names of the chains, unless the caller is an agent. A chain that was tampered with
// gets no name, so that it does not prevent decisions about others.
func (v *visit) nameChains(caller *service.Caller, rows []approvalRow) error {
	if !caller.Role.Includes(ledger.RoleMember) {
		return nil
	}
	known := make(map[ledger.ChainID]*ledger.Chain)
	for i := range rows {
		row := &rows[i]
		chain, ok := known[row.Chain]
		if !ok {
			view, err := v.console.service.Chain(v.r.Context(), caller, row.Chain)
			switch code := codeOf(err); {
			case err == nil:
				chain = view.Chain
			case code != fault.CodeEvidenceTampered && code != fault.CodeNotFound:
				return err
			}
			known[row.Chain] = chain
		}
		if chain != nil {
			row.ChainName, row.Environment = chain.Name, chain.Environment
		}
	}
	return nil
}
