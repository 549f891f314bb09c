package service

import (
	"context"
	"encoding/binary"
	"errors"
	"math"
	"math/bits"
	"time"

	"github.com/google/uuid"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

// searchService finds records through the search index, and adds missing records to it.
type searchService struct {
	*shared
	approvals *approvalService
	chains    *chainService
	receipts  *receiptService
}

// A search finds candidates in an index that is not authenticated. Each candidate is read,
// authenticated and matched again. So editing the index can hide a record, but cannot add one
// that does not match. A candidate that fails authentication is marked, because it may have
// matched.

// Found is one page of a search. Next is where the next page begins; nil at the end. A page
// before the end may be short or empty.
type Found[T, P any] struct {
	Items []T
	Next  *P
}

// clockSlack bounds how far the order of a list may deviate from its times, because the clocks
// of replicas differ.
const clockSlack = 10 * time.Second

// ChainSearch selects chains by their content.
type ChainSearch struct {
	ledger.Find
	ChainFilter
}

// FindChains lists the chains that a search finds, newest first.
func (s *searchService) FindChains(ctx context.Context, caller *Caller, filter *ChainSearch) (*Found[*ChainView, ledger.ChainID], error) {
	if err := s.authorize(ctx, caller, ledger.RoleAgent); err != nil {
		return nil, err
	}
	org, err := s.organization(ctx, caller.Org)
	if err != nil {
		return nil, err
	}
	var from []byte
	if filter.Since != nil {
		bound := ledger.NewTimedID(max(filter.Since.Add(-clockSlack), 0), [10]byte{})
		from = bound[:6] // no id of that time is smaller
	}
	before := string([]byte{255}) // greater than any timed id
	if filter.Until != nil {
		bound := ledger.NewTimedID(filter.Until.Add(clockSlack), [10]byte{})
		before = string(bound[:6])
	}
	if filter.Before != nil {
		before = min(before, string(filter.Before.UUID[:]))
	}
	query := store.ChainQuery{Org: caller.Org, Status: filter.Status, Environment: filter.Environment, ExternalID: filter.ExternalID}
	if caller.Role == ledger.RoleAgent {
		query.OpenedBy = &caller.Key
	}
	rows := 0
	streams := s.conditions(&filter.Find, ledger.ListChains, caller.Org, from, &rows)
	if len(streams) == 0 || query != (store.ChainQuery{Org: caller.Org}) {
		streams = append(streams, s.chainStream(query, from, &rows))
	}
	found := &Found[*ChainView, ledger.ChainID]{}
	q := &search{streams: streams, before: before, limit: filter.Limit, rows: &rows}
	q.examine = func(ctx context.Context, place string, events [][]int64) error {
		view, err := s.matchChain(ctx, &query, filter, place, events)
		if err == nil {
			found.Items = append(found.Items, view.withOrg(org))
		}
		return err
	}
	if err := q.run(ctx); err != nil {
		return nil, visible(err)
	}
	if q.next != "" {
		found.Next = &ledger.ChainID{UUID: idBound(q.next)}
	}
	return found, nil
}

// matchChain reads the chain at a place. It returns errNoRecord if the chain does not match.
func (s *searchService) matchChain(ctx context.Context, query *store.ChainQuery, filter *ChainSearch, place string, events [][]int64) (*ChainView, error) {
	if len(place) != len(ledger.ChainID{}.UUID) {
		return nil, errNoRecord
	}
	record, err := s.store.Chain(ctx, ledger.ChainID{UUID: [16]byte([]byte(place))})
	if errors.Is(err, store.ErrNotFound) {
		return nil, errNoRecord
	}
	if err != nil {
		return nil, err
	}
	if record.Org != query.Org || query.OpenedBy != nil && record.OpenedBy != *query.OpenedBy ||
		query.Status != "" && record.Status != query.Status || query.Environment != "" && record.Environment != query.Environment ||
		query.ExternalID != "" && record.ExternalID != query.ExternalID {
		return nil, errNoRecord
	}
	view, err := s.chains.listedChain(ctx, record)
	if err != nil || view.Tampered {
		return view, err
	}
	if !filter.During(view.StartedAt) || !filter.MatchesChain(view.Chain) || query.Status != "" && view.State.Status != query.Status {
		return nil, errNoRecord
	}
	if !filter.SearchesActions() {
		return view, nil
	}
	actions, err := s.actedAt(ctx, view.Chain, events)
	switch {
	case errors.Is(err, ledger.ErrStateTampered):
		return s.chains.tamperedChain(view.Chain.ID), nil
	case err != nil:
		return nil, err
	case !filter.MatchesActions(actions):
		return nil, errNoRecord
	}
	return view, nil
}

// actedAt reads the events that the index refers to.
func (s *searchService) actedAt(ctx context.Context, chain *ledger.Chain, events [][]int64) ([]ledger.SearchedAction, error) {
	read := make(map[int64]bool)
	var actions []ledger.SearchedAction
	for _, sequences := range events {
		for _, sequence := range sequences {
			if read[sequence] {
				continue
			}
			read[sequence] = true
			stored, err := s.store.Event(ctx, store.EventAt{Chain: chain.ID, Sequence: sequence})
			if errors.Is(err, store.ErrNotFound) {
				continue
			}
			if err != nil {
				return nil, err
			}
			event, err := s.store.ReadEvent(chain.Org, stored)
			if err != nil {
				return nil, err
			}
			actions = append(actions, event.SearchedAction())
		}
	}
	return actions, nil
}

// ReceiptSearch selects receipts by their content and that of their chains.
type ReceiptSearch struct {
	ledger.Find
	Before int64 // only receipts with a smaller sequence; 0 for all
	Limit  int
}

// FindReceipts lists the receipts that a search finds, newest first.
func (s *searchService) FindReceipts(ctx context.Context, caller *Caller, filter *ReceiptSearch) (*Found[*ledger.StoredReceipt, int64], error) {
	if err := s.authorize(ctx, caller, ledger.RoleMember); err != nil {
		return nil, err
	}
	org, err := s.organization(ctx, caller.Org)
	if err != nil {
		return nil, err
	}
	from, end, err := s.receiptsDuring(ctx, org.ID, &filter.Find)
	if err != nil {
		return nil, visible(err)
	}
	if filter.Before > 0 {
		end = min(end, filter.Before)
	}
	rows := 0
	streams := s.conditions(&filter.Find, ledger.ListReceipts, org.ID, receiptPlace(from), &rows)
	if len(streams) == 0 {
		streams = append(streams, receiptStream{from})
	}
	found := &Found[*ledger.StoredReceipt, int64]{}
	q := &search{streams: streams, before: string(receiptPlace(end)), limit: filter.Limit, rows: &rows}
	q.examine = func(ctx context.Context, place string, _ [][]int64) error {
		receipt, err := s.matchReceipt(ctx, org, &filter.Find, place)
		if err == nil {
			found.Items = append(found.Items, receipt)
		}
		return err
	}
	if err := q.run(ctx); err != nil {
		return nil, visible(err)
	}
	if q.next != "" {
		next := receiptBound(q.next)
		found.Next = &next
	}
	return found, nil
}

func (s *searchService) matchReceipt(ctx context.Context, org *ledger.Organization, find *ledger.Find, place string) (*ledger.StoredReceipt, error) {
	if len(place) != 8 {
		return nil, errNoRecord
	}
	sequence := placeNumber(place)
	stored, err := s.receiptAt(ctx, org.ID, sequence)
	if err != nil {
		return nil, err
	}
	receipt := s.receipts.shownReceipt(stored, org.Slug)
	if receipt.Tampered {
		return receipt, nil
	}
	generated, actions, err := ledger.ReceiptContent(receipt.Body)
	if err != nil {
		return nil, err
	}
	if !find.During(generated) || !find.MatchesActions(actions) {
		return nil, errNoRecord
	}
	if find.Name == "" && len(find.Metadata) == 0 {
		return receipt, nil
	}
	chain, err := s.chains.readChain(ctx, org.ID, receipt.Chain)
	switch {
	case errors.Is(err, ledger.ErrStateTampered) || errors.Is(err, store.ErrNotFound):
		s.log.Error(tamperedLog, "of", "a receipt's chain")
		return &ledger.StoredReceipt{ID: stored.ID, Org: stored.Org, Sequence: stored.Sequence, Tampered: true}, nil
	case err != nil:
		return nil, err
	case !find.MatchesChain(chain.Chain):
		return nil, errNoRecord
	}
	return receipt, nil
}

func (s *searchService) receiptAt(ctx context.Context, org ledger.OrgID, sequence int64) (*ledger.StoredReceipt, error) {
	if sequence < 1 || sequence == math.MaxInt64 {
		return nil, errNoRecord
	}
	receipts, err := s.store.Receipts(ctx, org, sequence+1, 1)
	if err != nil {
		return nil, err
	}
	if len(receipts) == 0 || receipts[0].Sequence != sequence {
		return nil, errNoRecord
	}
	return receipts[0], nil
}

// receiptsDuring narrows a search by time to the sequences from..end (end excluded). It does
// not authenticate what it reads: editing that can hide a match, as editing the index can.
func (s *searchService) receiptsDuring(ctx context.Context, org ledger.OrgID, find *ledger.Find) (from, end int64, err error) {
	newest, err := s.store.Receipts(ctx, org, 0, 1)
	if err != nil || len(newest) == 0 {
		return 1, 1, err
	}
	from, end = 1, newest[0].Sequence+1
	if find.Since != nil {
		if from, err = s.firstReceipt(ctx, org, find.Since.Add(-clockSlack), from, end); err != nil {
			return 0, 0, err
		}
	}
	if find.Until != nil {
		end, err = s.firstReceipt(ctx, org, find.Until.Add(clockSlack), from, end)
	}
	return from, end, err
}

// firstReceipt returns the first sequence of from..end whose receipt was generated at the given
// time or later; end if there is none.
func (s *searchService) firstReceipt(ctx context.Context, org ledger.OrgID, at ledger.Time, from, end int64) (int64, error) {
	for from < end {
		middle := from + (end-from)/2
		earlier := false
		stored, err := s.receiptAt(ctx, org, middle)
		if err == nil {
			generated, _, contentErr := ledger.ReceiptContent(stored.Body)
			earlier = contentErr == nil && generated < at
		} else if !errors.Is(err, errNoRecord) {
			return 0, err
		}
		if earlier {
			from = middle + 1
		} else {
			end = middle
		}
	}
	return from, nil
}

// ApprovalSearch selects approvals by their content and that of their chains. Find.Decision is
// ignored: an approval has a status instead.
type ApprovalSearch struct {
	ledger.Find
	ApprovalFilter
}

// FindApprovals lists the approvals that a search finds, newest first.
func (s *searchService) FindApprovals(ctx context.Context, caller *Caller, filter *ApprovalSearch) (*Found[*ApprovalView, ApprovalPlace], error) {
	s.noteGrant(caller.Org) // possibly; noted before anything is read
	if err := s.authorize(ctx, caller, ledger.RoleAgent); err != nil {
		return nil, err
	}
	if filter.Chain != nil {
		if err := s.approvals.allListed(ctx, caller, *filter.Chain); err != nil {
			return nil, err
		}
	}
	var from []byte
	if filter.Since != nil {
		from = approvalPlace(*filter.Since, ledger.ApprovalID{})
	}
	before := string(approvalPlace(math.MaxInt64, ledger.ApprovalID{}))
	if filter.Until != nil {
		before = string(approvalPlace(*filter.Until, ledger.ApprovalID{}))
	}
	if filter.Before != nil {
		before = min(before, string(approvalPlace(filter.Before.RequestedAt, filter.Before.ID)))
	}
	query := store.ApprovalQuery{Org: caller.Org, Chain: filter.Chain, Status: filter.Status}
	if caller.Role == ledger.RoleAgent {
		query.OpenedBy = &caller.Key
	}
	org, err := s.organization(ctx, caller.Org)
	if err != nil {
		return nil, err
	}
	rows := 0
	streams := s.conditions(&filter.Find, ledger.ListApprovals, caller.Org, from, &rows)
	if len(streams) == 0 || query != (store.ApprovalQuery{Org: caller.Org}) {
		streams = append(streams, s.approvalStream(query, from, &rows))
	}
	var records []*store.ApprovalRecord
	q := &search{streams: streams, before: before, limit: filter.Limit, rows: &rows}
	shared := s.approvals.viewer(org)
	q.examine = func(ctx context.Context, place string, _ [][]int64) error {
		record, err := s.matchApproval(ctx, shared, &query, &filter.Find, place)
		if err == nil {
			records = append(records, record)
		}
		return err
	}
	if err := q.run(ctx); err != nil {
		return nil, visible(err)
	}
	found := &Found[*ApprovalView, ApprovalPlace]{}
	if found.Items, err = s.approvals.showApprovals(ctx, caller, org, records, filter.ApprovalFilter); err != nil {
		return nil, err
	}
	if shown := len(found.Items); shown < len(records) {
		last := records[shown-1]
		found.Next = &ApprovalPlace{RequestedAt: last.RequestedAt, ID: last.ID}
	} else if q.next != "" {
		found.Next = approvalBound(q.next)
	}
	return found, nil
}

func approvalBound(before string) *ApprovalPlace {
	return &ApprovalPlace{RequestedAt: placeTime(before), ID: ledger.ApprovalID{UUID: idBound(before[min(len(before), 8):])}}
}

// matchApproval returns the record at a place if it matches or fails authentication.
func (s *searchService) matchApproval(ctx context.Context, shared *approvalViewer, query *store.ApprovalQuery, find *ledger.Find, place string) (*store.ApprovalRecord, error) {
	if len(place) != 8+16 {
		return nil, errNoRecord
	}
	record, err := s.store.Approval(ctx, ledger.ApprovalID{UUID: [16]byte([]byte(place[8:]))})
	if errors.Is(err, store.ErrNotFound) {
		return nil, errNoRecord
	}
	if err != nil {
		return nil, err
	}
	if record.Org != query.Org || record.RequestedAt != placeTime(place) || query.OpenedBy != nil && record.OpenedBy != *query.OpenedBy ||
		query.Status != "" && record.Status != query.Status || query.Chain != nil && record.Chain != *query.Chain {
		return nil, errNoRecord
	}
	approval, err := s.store.ReadApproval(record)
	if errors.Is(err, ledger.ErrStateTampered) {
		return record, nil // showApprovals marks it
	}
	if err != nil {
		return nil, err
	}
	if !find.During(approval.RequestedAt) || !find.MatchesActions([]ledger.SearchedAction{actedOf(approval)}) {
		return nil, errNoRecord
	}
	if find.Name == "" && len(find.Metadata) == 0 {
		return record, nil
	}
	chain, err := shared.chain(ctx, approval.Chain)
	switch {
	case errors.Is(err, ledger.ErrStateTampered) || errors.Is(err, store.ErrNotFound):
		return nil, errNoRecord // lists of chains mark the chain
	case err != nil:
		return nil, err
	case !find.MatchesChain(chain.Chain):
		return nil, errNoRecord
	}
	return record, nil
}

// The bounds of one page of a search: index rows read, and records examined. A page that
// reaches one of them ends early, and the next page begins there.
const (
	maxSearchRows     = 20_000
	maxSearchExamined = 500
)

// stream lists places in descending order. A place is the position of a record in its list,
// as bytes that sort like the list.
type stream interface {
	// below returns the greatest place smaller than before, "" for none. before must not grow
	// from call to call.
	below(ctx context.Context, before string) (string, error)
	// events appends the sequences of the events that the index refers to at the place that
	// below returned last.
	events(place string, to []int64) []int64
}

// search walks the places that all streams have in common.
type search struct {
	streams []stream
	before  string // the page has places smaller than this
	limit   int
	// examine adds the record at a place to the hits, or returns errNoRecord. events has, for
	// each stream, the sequences of the events that the index refers to.
	examine func(ctx context.Context, place string, events [][]int64) error

	rows *int   // rows read by the streams
	next string // result: where the next page begins; "" if there is none
}

func (q *search) run(ctx context.Context) error {
	examined, hits := 0, 0
	for at := q.before; ; {
		if *q.rows > maxSearchRows || examined == maxSearchExamined || hits == q.limit {
			q.next = at
			return nil
		}
		place, common, err := q.lowest(ctx, at)
		if err != nil || place == "" {
			return err
		}
		if !common {
			at = place + "\x00" // so that the place itself is next
			continue
		}
		at = place
		events := make([][]int64, len(q.streams))
		for i, s := range q.streams {
			events[i] = s.events(place, nil)
		}
		examined++
		switch err := q.examine(ctx, place, events); {
		case err == nil:
			hits++
		case !errors.Is(err, errNoRecord):
			return err
		}
	}
}

// lowest returns the smallest of the streams' next places, and whether all streams have it.
func (q *search) lowest(ctx context.Context, before string) (lowest string, common bool, err error) {
	common = true
	for i, s := range q.streams {
		place, err := s.below(ctx, before)
		if err != nil || place == "" {
			return "", false, err
		}
		if i > 0 && place != lowest {
			common = false
		}
		if i == 0 || place < lowest {
			lowest = place
			before = place + "\x00" // the other streams can skip to this place
		}
	}
	return lowest, common, nil
}

// pages is a stream that is read page by page: few rows at first, and more if consecutive
// places are used.
type pages[Row any] struct {
	read func(ctx context.Context, before string, limit int) ([]Row, error)
	// place returns the greatest place of a row that is smaller than before; "" if there is
	// none.
	place func(row Row, before string) string
	rows  *int

	page  []Row // the remaining rows of the page
	size  int   // of the page when it was read
	taken int   // places returned from the page
	ended bool  // there are no further pages
}

const (
	minPage = 16
	maxPage = 512
)

func (p *pages[Row]) below(ctx context.Context, before string) (string, error) {
	for read := false; ; read = true {
		for ; len(p.page) > 0; p.page = p.page[1:] {
			if place := p.place(p.page[0], before); place != "" {
				p.taken++
				return place, nil
			}
		}
		if p.ended || read { // a full page without a place is forged
			return "", nil
		}
		if p.taken >= p.size/2 && p.size > 0 {
			p.size = min(2*p.size, maxPage)
		} else {
			p.size = minPage
		}
		var err error
		if p.page, err = p.read(ctx, before, p.size); err != nil {
			return "", err
		}
		p.taken, p.ended = 0, len(p.page) < p.size
		*p.rows += len(p.page) + 1
	}
}

func (p *pages[Row]) events(_ string, to []int64) []int64 { return to }

// postings is the stream of the chains or approvals that have a term.
type postings struct{ pages[store.Posting] }

func (p *postings) events(place string, to []int64) []int64 {
	if len(p.page) > 0 && string(p.page[0].Place) == place && p.page[0].Sequence > 0 {
		to = append(to, p.page[0].Sequence)
	}
	return to
}

// anyOf is the union of its streams.
type anyOf []stream

func (a anyOf) below(ctx context.Context, before string) (string, error) {
	greatest := ""
	for _, s := range a {
		place, err := s.below(ctx, before)
		if err != nil {
			return "", err
		}
		greatest = max(greatest, place)
	}
	return greatest, nil
}

func (a anyOf) events(place string, to []int64) []int64 {
	for _, s := range a {
		to = s.events(place, to)
	}
	return to
}

// conditions returns a stream for each condition of a search. The streams end at the place from.
func (s *searchService) conditions(find *ledger.Find, list ledger.SearchList, org ledger.OrgID, from []byte, rows *int) (streams []stream) {
	for _, condition := range find.Conditions(list, org) {
		var terms anyOf
		for _, term := range condition.AnyOf {
			if list == ledger.ListReceipts {
				terms = append(terms, s.receiptsWith(term, from, rows))
			} else {
				terms = append(terms, s.postingsOf(term, from, rows))
			}
		}
		streams = append(streams, terms)
	}
	return streams
}

func (s *searchService) postingsOf(term ledger.Term, from []byte, rows *int) stream {
	read := func(ctx context.Context, before string, limit int) ([]store.Posting, error) {
		return s.store.Postings(ctx, store.PostingQuery{Term: term, Before: []byte(before), From: from, Limit: limit})
	}
	place := func(p store.Posting, before string) string { return placeBelow(p.Place, before) }
	return &postings{pages[store.Posting]{rows: rows, read: read, place: place}}
}

// placeBelow returns a place that is smaller than before, or "".
func placeBelow(place []byte, before string) string {
	if string(place) < before {
		return string(place)
	}
	return ""
}

// receiptsWith is the stream of the receipts that have a term.
func (s *searchService) receiptsWith(term ledger.Term, from []byte, rows *int) stream {
	first := placeNumber(string(from))
	read := func(ctx context.Context, before string, limit int) ([]store.ReceiptPosting, error) {
		return s.store.ReceiptPostings(ctx, store.ReceiptPostingQuery{
			Term: term, From: first / store.BlockSize, To: (receiptBound(before) - 1) / store.BlockSize, Limit: limit,
		})
	}
	place := func(p store.ReceiptPosting, before string) string {
		if sequence := lastReceipt(p, receiptBound(before)); sequence >= max(first, 1) {
			return string(receiptPlace(sequence))
		}
		return ""
	}
	return &pages[store.ReceiptPosting]{rows: rows, read: read, place: place}
}

// lastReceipt returns the greatest sequence of a posting that is smaller than before; -1 if
// there is none.
func lastReceipt(p store.ReceiptPosting, before int64) int64 {
	start := p.Block * store.BlockSize
	if before <= start {
		return -1
	}
	receipts := p.Receipts
	if above := start + store.BlockSize - before; above > 0 {
		receipts = receipts << above >> above
	}
	if receipts == 0 {
		return -1
	}
	return start + int64(bits.Len64(receipts)) - 1
}

// chainStream lists chains by the columns that the store can query.
func (s *searchService) chainStream(query store.ChainQuery, from []byte, rows *int) stream {
	return &pages[[]byte]{rows: rows, place: placeBelow, read: func(ctx context.Context, before string, limit int) (found [][]byte, err error) {
		query.Before, query.Limit = &ledger.ChainID{UUID: idBound(before)}, limit
		records, err := s.store.Chains(ctx, query)
		for _, record := range records {
			if string(record.ID.UUID[:]) < string(from) {
				break
			}
			found = append(found, record.ID.UUID[:])
		}
		return found, err
	}}
}

// idBound returns the smallest id that is greater than all ids below a place.
func idBound(before string) (id uuid.UUID) {
	copy(id[:], before)
	if len(before) > len(id) { // the id itself is below the place
		for i := len(id) - 1; i >= 0; i-- {
			if id[i]++; id[i] != 0 {
				break
			}
		}
	}
	return id
}

// approvalStream lists approvals by the columns that the store can query.
func (s *searchService) approvalStream(query store.ApprovalQuery, from []byte, rows *int) stream {
	return &pages[[]byte]{rows: rows, place: placeBelow, read: func(ctx context.Context, before string, limit int) (found [][]byte, err error) {
		query.Before, query.Limit = approvalBound(before), limit
		records, err := s.store.Approvals(ctx, query)
		for _, record := range records {
			place := approvalPlace(record.RequestedAt, record.ID)
			if string(place) < string(from) {
				break
			}
			found = append(found, place)
		}
		return found, err
	}}
}

// receiptStream lists all receipts: their numbers have no gaps.
type receiptStream struct{ from int64 }

func (r receiptStream) below(_ context.Context, before string) (string, error) {
	sequence := receiptBound(before) - 1
	if sequence < max(r.from, 1) {
		return "", nil
	}
	return string(receiptPlace(sequence)), nil
}

func (receiptStream) events(_ string, to []int64) []int64 { return to }

// receiptBound returns the smallest sequence that is not below a place.
func receiptBound(before string) int64 {
	bound := placeNumber(before)
	if len(before) > 8 { // the receipt's own place is below before
		bound++
	}
	return bound
}

// placeNumber returns the number that a place begins with.
func placeNumber(place string) int64 {
	if len(place) < 8 {
		return 0
	}
	return int64(binary.BigEndian.Uint64([]byte(place[:8]))) //nolint:gosec // places are made of positive numbers
}

func placeTime(place string) ledger.Time { return ledger.Time(placeNumber(place)) }

// errNoRecord reports that the record at a place does not exist, belongs to another
// organization or does not match.
var errNoRecord = errors.New("the search index names no record of the organization")
