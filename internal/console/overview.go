package console

import (
	"net/http"
	"net/url"
	"strconv"
	"time"

	"countersign/internal/fault"
	"countersign/internal/ledger"
	"countersign/internal/service"
)

// showStart shows the overview, or a welcome page to those who are not signed in.
func showStart(v *visit) error {
	if v.caller == nil {
		return v.show(http.StatusOK, "welcome.html", "Countersign", v.ssoButton())
	}
	if !v.caller.Role.Includes(ledger.RoleMember) {
		v.seeOther("/approvals") // agents see nothing else
		return nil
	}
	o, err := v.overview(v.caller)
	if err != nil {
		return err
	}
	return v.show(http.StatusOK, "overview.html", o.Waiting.title(visible(o.Organization.Name)), o)
}

const overviewPage = 10

type overview struct {
	Organization *ledger.Organization
	Defaults     bool // the organization has no policies of its own
	Now          ledger.Time
	Waiting      waitingList
	Receipts     int64 // sealed so far
	Running      count
	Paused       count
	PausedChains []*service.ChainView
	Chains       chainList
	Newest       receiptList
	Legacy       legacyUse // set only for admins
}

// legacyUse is the recent use of links that contain the id of an approval.
type legacyUse struct {
	Requests int64
	Days     int
	LastDay  string
}

// legacyDays is the number of days that legacyUse covers.
const legacyDays = 30

// count is a number that is exact up to a bound.
type count struct {
	N    int
	Over bool // there are more than N
}

type chainList struct {
	Rows []*service.ChainView
	// Alarm is shown instead of the rows if chains were tampered with, so that the rest of the page
	// can still be shown.
	Alarm  string
	Search *searchBox // nil on the overview
	pageLinks
}

type receiptList struct {
	Rows   []receiptRow
	Search *searchBox // nil on the overview
	pageLinks
}

// pageLinks are the links to other pages of a list, or "". On a page with two lists, they keep the
// position of the other one.
type pageLinks struct{ Newest, Older string }

type receiptRow struct {
	ID          ledger.ReceiptID
	Number      string
	Summary     string
	GeneratedAt string
	Check       *ledger.ReceiptCheck
}

const waitingAlarm = "Stored records were changed outside the service, so some waiting approvals are not shown. Run countersign audit to find where."

func (v *visit) overview(caller *service.Caller) (*overview, error) {
	at, err := readOverviewPosition(v.r.URL.Query())
	if err != nil {
		return nil, err
	}
	o := &overview{Organization: v.organization, Defaults: v.hasNoPolicy(), Now: v.console.service.Now()}
	if o.Waiting, err = v.waiting(caller); err != nil {
		if codeOf(err) != fault.CodeEvidenceTampered {
			return nil, err
		}
		v.report(http.StatusInternalServerError, fault.CodeEvidenceTampered, err)
		o.Waiting = waitingList{Alarm: waitingAlarm}
	}
	if err := v.loadChains(caller, o, at); err != nil {
		if codeOf(err) != fault.CodeEvidenceTampered {
			return nil, err
		}
		v.report(http.StatusInternalServerError, fault.CodeEvidenceTampered, err)
		o.Chains = chainList{Alarm: "Stored records were changed outside the service, so the chains are not shown. Run countersign audit to find where."}
	}
	if err := v.loadReceipts(caller, o, at); err != nil {
		return nil, err
	}
	if caller.Role.Includes(ledger.RoleAdmin) {
		o.Legacy, err = v.legacyUse(caller)
	}
	return o, err
}

func (v *visit) legacyUse(caller *service.Caller) (legacyUse, error) {
	uses, err := v.console.service.LegacyUse(v.r.Context(), caller, legacyDays)
	use := legacyUse{Days: legacyDays}
	for _, u := range uses { // in order of days
		use.Requests += u.Requests
		use.LastDay = u.Day.Std().Format(time.DateOnly)
	}
	return use, err
}

func (v *visit) loadChains(caller *service.Caller, o *overview, at overviewPosition) (err error) {
	if o.Running, _, err = v.count(caller, ledger.ChainActive); err != nil {
		return err
	}
	if o.Paused, o.PausedChains, err = v.count(caller, ledger.ChainAutoPaused); err != nil {
		return err
	}
	rows, more, err := v.chainRows(caller, at.chain, overviewPage)
	if err != nil {
		return err
	}
	o.Chains.Rows = rows
	if more {
		o.Chains.Older = at.withChain(&rows[len(rows)-1].ID).link("chains")
	}
	if at.chain != nil {
		o.Chains.Newest = at.withChain(nil).link("chains")
	}
	return nil
}

// count counts the chains of a status, and returns the newest of them for the overview.
func (v *visit) count(caller *service.Caller, status ledger.ChainStatus) (count, []*service.ChainView, error) {
	const most = 100
	chains, err := v.console.service.Chains(v.r.Context(), caller, service.ChainFilter{Status: status, Limit: most + 1})
	return count{N: min(len(chains), most), Over: len(chains) > most}, chains[:min(len(chains), overviewPage)], err
}

func (v *visit) loadReceipts(caller *service.Caller, o *overview, at overviewPosition) error {
	newest, err := v.console.service.Receipts(v.r.Context(), caller, 0, 1)
	if err != nil {
		return err
	}
	if len(newest) > 0 {
		o.Receipts = newest[0].Sequence // sequences start at 1 and have no gaps
	}
	var last int64
	if o.Newest.Rows, last, err = v.receiptRows(caller, at.receipt, overviewPage); err != nil {
		return err
	}
	if last != 0 {
		o.Newest.Older = at.withReceipt(last).link("receipts")
	}
	if at.receipt != 0 {
		o.Newest.Newest = at.withReceipt(0).link("receipts")
	}
	return nil
}

// overviewPosition is the current page of each of the two lists.
type overviewPosition struct {
	chain   *ledger.ChainID // list chains opened before this one; nil for the newest
	receipt int64           // list receipts sealed before this one; 0 for the newest
}

func readOverviewPosition(query url.Values) (at overviewPosition, err error) {
	if text := query.Get("chains_before"); text != "" {
		id, err := ledger.ParseID(text)
		if err != nil {
			return overviewPosition{}, errPosition
		}
		at.chain = &ledger.ChainID{UUID: id}
	}
	at.receipt, err = readPosition(query, "receipts_before")
	return at, err
}

var errPosition = fault.Errorf(fault.CodeInvalid, "this address is not a page of the list; go back to the overview")

// readPosition reads a position in a list. It returns 0 if there is none.
func readPosition(query url.Values, name string) (int64, error) {
	text := query.Get(name)
	if text == "" {
		return 0, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 1 || n > 1<<53 {
		return 0, errPosition
	}
	return n, nil
}

func (p overviewPosition) withChain(id *ledger.ChainID) overviewPosition { p.chain = id; return p }

func (p overviewPosition) withReceipt(sequence int64) overviewPosition {
	p.receipt = sequence
	return p
}

func (p overviewPosition) link(section string) string {
	query := make(url.Values)
	if p.chain != nil {
		query.Set("chains_before", p.chain.String())
	}
	if p.receipt != 0 {
		query.Set("receipts_before", strconv.FormatInt(p.receipt, 10))
	}
	return (&url.URL{Path: "/", RawQuery: query.Encode(), Fragment: section}).String()
}

// positionLink returns the address of the page with the entries before a position.
func positionLink(path string, before int64) string {
	return path + "?before=" + strconv.FormatInt(before, 10)
}
