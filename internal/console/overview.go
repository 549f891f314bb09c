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

// showStart is the overview of who is signed in, and a welcome to anyone else.
func showStart(v *visit) error {
	if v.caller == nil {
		return v.show(http.StatusOK, "welcome.html", "Countersign", nil)
	}
	if !v.caller.Role.Includes(ledger.RoleMember) {
		v.seeOther("/approvals") // all that an agent's key sees
		return nil
	}
	o, err := v.overview(v.caller)
	if err != nil {
		return err
	}
	return v.show(http.StatusOK, "overview.html", o.Waiting.title(o.Organization.Name), o)
}

const overviewPage = 10

type overview struct {
	Organization *ledger.Organization
	Defaults     bool // no policies of its own
	Now          ledger.Time
	Waiting      waitingList
	Receipts     int64 // sealed so far
	Running      count
	Paused       count
	PausedChains []*service.ChainView
	Chains       chainList
	Newest       receiptList
	Legacy       legacyUse // for admins
}

// legacyUse is how often links by the ids of approvals were opened in the last days.
type legacyUse struct {
	Requests int64
	Days     int
	LastDay  string
}

// legacyDays is what is shown of it.
const legacyDays = 30

// count is exact up to a bound.
type count struct {
	N    int
	Over bool
}

type chainList struct {
	Rows []*service.ChainView
	// Alarm is said in place of rows that fail their authenticator. The
	// receipts beside them must still be seen.
	Alarm  string
	Search *searchBox // nil on the overview
	pageLinks
}

type receiptList struct {
	Rows   []receiptRow
	Search *searchBox // nil on the overview
	pageLinks
}

// pageLinks lead on in one list and leave the other where it is.
type pageLinks struct{ Newest, Older string }

type receiptRow struct {
	ID          ledger.ReceiptID
	Number      string
	Summary     string
	GeneratedAt string
	Check       *ledger.ReceiptCheck
}

const waitingAlarm = "Stored evidence was changed outside the service, so not all that waits is shown. Run countersign audit to find where."

func (v *visit) overview(caller *service.Caller) (*overview, error) {
	at, err := readPlace(v.r.URL.Query())
	if err != nil {
		return nil, err
	}
	o := &overview{Organization: v.organization, Defaults: v.unguarded(), Now: v.console.service.Now()}
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
		o.Chains = chainList{Alarm: "Stored evidence was changed outside the service, so the chains are not shown. Run countersign audit to find where."}
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
	for _, u := range uses { // by day
		use.Requests += u.Requests
		use.LastDay = u.Day.Std().Format(time.DateOnly)
	}
	return use, err
}

func (v *visit) loadChains(caller *service.Caller, o *overview, at place) (err error) {
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

// count counts the chains of a status, and returns the newest of them.
func (v *visit) count(caller *service.Caller, status ledger.ChainStatus) (count, []*service.ChainView, error) {
	const most = 100
	chains, err := v.console.service.Chains(v.r.Context(), caller, service.ChainFilter{Status: status, Limit: most + 1})
	return count{N: min(len(chains), most), Over: len(chains) > most}, chains[:min(len(chains), overviewPage)], err
}

func (v *visit) loadReceipts(caller *service.Caller, o *overview, at place) error {
	newest, err := v.console.service.Receipts(v.r.Context(), caller, 0, 1)
	if err != nil {
		return err
	}
	if len(newest) > 0 {
		o.Receipts = newest[0].Sequence // it counts from 1, without gaps
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

// place is how far back each of the two lists is turned.
type place struct {
	chain   *ledger.ChainID // those opened before it; nil for the newest
	receipt int64           // those sealed before it; 0 for the newest
}

func readPlace(query url.Values) (at place, err error) {
	if text := query.Get("chains_before"); text != "" {
		id, err := ledger.ParseID(text)
		if err != nil {
			return place{}, errPlace
		}
		at.chain = &ledger.ChainID{UUID: id}
	}
	at.receipt, err = readPosition(query, "receipts_before")
	return at, err
}

var errPlace = fault.Errorf(fault.CodeInvalid, "the address names no place in this list; go back to the overview")

// readPosition reads a position in a list, 0 for none.
func readPosition(query url.Values, name string) (int64, error) {
	text := query.Get(name)
	if text == "" {
		return 0, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 1 || n > 1<<53 {
		return 0, errPlace
	}
	return n, nil
}

func (p place) withChain(id *ledger.ChainID) place { p.chain = id; return p }

func (p place) withReceipt(sequence int64) place { p.receipt = sequence; return p }

func (p place) link(section string) string {
	query := make(url.Values)
	if p.chain != nil {
		query.Set("chains_before", p.chain.String())
	}
	if p.receipt != 0 {
		query.Set("receipts_before", strconv.FormatInt(p.receipt, 10))
	}
	return (&url.URL{Path: "/", RawQuery: query.Encode(), Fragment: section}).String()
}

// positionLink leads to the entries of a list before a position.
func positionLink(path string, before int64) string {
	return path + "?before=" + strconv.FormatInt(before, 10)
}
