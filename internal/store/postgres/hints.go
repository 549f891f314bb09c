package postgres

import (
	"bytes"
	"cmp"
	"context"
	"maps"
	"slices"

	"github.com/google/uuid"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

const (
	// Rows are written in order of id, so that two writers do not deadlock.
	touchChainsSQL = `insert into chain_polls (chain_id, polled_at)
		select n.id, n.at from unnest($1::uuid[], $2::bigint[]) n(id, at) join chains c on c.id = n.id order by n.id
		on conflict (chain_id) do update set polled_at = excluded.polled_at where chain_polls.polled_at < excluded.polled_at`
	loadPollsSQL = `select chain_id, polled_at from chain_polls where chain_id = any($1::uuid[])`
)

// TouchChains implements store.Polls.
func (s *Store) TouchChains(ctx context.Context, polled map[ledger.ChainID]ledger.Time) error {
	if len(polled) == 0 {
		return nil
	}
	chains := slices.Collect(maps.Keys(polled))
	rt := new(roundTrip)
	rt.send(touchChainsSQL, ids(chains, chainUUID), ints(chains, func(id ledger.ChainID) int64 { return int64(polled[id]) }))
	return s.runTransaction(ctx, "touch chains", rt)
}

type poll struct {
	id uuid.UUID // of a chain or an approval
	at ledger.Time
}

func readPoll(r *row) poll { return poll{r.id(), r.time()} }

// Polled implements store.Polls.
func (s *Store) Polled(ctx context.Context, chains []ledger.ChainID) (map[ledger.ChainID]ledger.Time, error) {
	polled := make(map[ledger.ChainID]ledger.Time)
	if len(chains) == 0 {
		return polled, nil
	}
	err := fetchNow(ctx, s, "polls", loadPollsSQL, readPoll, func(p poll) { polled[ledger.ChainID{UUID: p.id}] = p.at },
		ids(chains, chainUUID))
	return polled, err
}

func loadPolls(rt *roundTrip, needs *store.Needs, loaded *store.Loaded) {
	loaded.Polls = make(map[ledger.ChainID]ledger.Time)
	chains := sorted(needs.Polls, chainUUID)
	fetchAll(rt, loadPollsSQL, chains, readPoll,
		func(p poll) { loaded.Polls[ledger.ChainID{UUID: p.id}] = p.at })
}

const (
	addLegacyUsesSQL = `insert into legacy_uses (org_id, day, route, requests) select * from unnest($1::uuid[], $2::bigint[], $3::text[], $4::bigint[])
		on conflict (org_id, day, route) do update
		set requests = legacy_uses.requests + least(excluded.requests, 9007199254740992 - legacy_uses.requests)`
	selectLegacyUsesSQL = `select org_id, day, route, requests from legacy_uses where day >= $1 and ($2::uuid is null or org_id = $2)
		and ($3::uuid is null or (org_id, day, route) > ($3, $4, $5)) order by org_id, day, route limit $6`
)

func compareLegacyUses(a, b store.LegacyUseRef) int {
	return cmp.Or(slices.Compare(a.Org.UUID[:], b.Org.UUID[:]), cmp.Compare(a.Day, b.Day), cmp.Compare(a.Route, b.Route))
}

// AddLegacyUses implements store.LegacyUses. Rows are written in a fixed order, so that two
// replicas do not deadlock.
func (s *Store) AddLegacyUses(ctx context.Context, uses map[store.LegacyUseRef]int64) error {
	if len(uses) == 0 {
		return nil
	}
	sorted := slices.SortedFunc(maps.Keys(uses), compareLegacyUses)
	rt := new(roundTrip)
	rt.send(addLegacyUsesSQL,
		ids(sorted, func(u store.LegacyUseRef) uuid.UUID { return u.Org.UUID }),
		ints(sorted, func(u store.LegacyUseRef) int64 { return int64(u.Day) }),
		texts(sorted, func(u store.LegacyUseRef) string { return u.Route }),
		ints(sorted, func(u store.LegacyUseRef) int64 { return uses[u] }))
	return s.runTransaction(ctx, "add legacy uses", rt)
}

// LegacyUses implements store.LegacyUses.
func (s *Store) LegacyUses(ctx context.Context, query store.LegacyUseQuery) ([]*store.LegacyUse, error) {
	var org, afterOrg any
	after := store.LegacyUseRef{}
	if query.Org != nil {
		org = bytesOf(query.Org.UUID)
	}
	if query.After != nil {
		after, afterOrg = *query.After, bytesOf(query.After.Org.UUID)
	}
	return list(ctx, s, "legacy uses", selectLegacyUsesSQL, []any{int64(query.Since), org, afterOrg, int64(after.Day), after.Route, query.Limit},
		func(r *row) *store.LegacyUse {
			return &store.LegacyUse{LegacyUseRef: store.LegacyUseRef{Org: ledger.OrgID{UUID: r.id()}, Day: r.time(), Route: r.text()}, Requests: r.int()}
		})
}

const (
	insertPostingsSQL = `insert into postings (term, place, sequence) select * from unnest($1::bigint[], $2::bytea[], $3::bigint[])
		on conflict do nothing`
	// With "$3 is null or place < $3" in one statement, PostgreSQL would scan all places from the
	// last one down.
	selectPostingsSQL       = `select place, sequence from postings where term = $1 and place >= $2 order by place desc limit $3`
	selectPostingsBeforeSQL = `select place, sequence from postings where term = $1 and place >= $2 and place < $4 order by place desc limit $3`
)

// sendPostings writes rows in a fixed order, so that two transactions do not deadlock.
func sendPostings(rt *roundTrip, postings []store.Posting) {
	if len(postings) == 0 {
		return
	}
	rt.send(insertPostingsSQL, postingParameters(postings)...)
}

func postingParameters(postings []store.Posting) [][]byte {
	sorted := slices.Clone(postings)
	slices.SortFunc(sorted, func(a, b store.Posting) int {
		return cmp.Or(cmp.Compare(a.Term, b.Term), bytes.Compare(a.Place, b.Place))
	})
	return [][]byte{
		ints(sorted, func(p store.Posting) int64 { return int64(p.Term) }),
		blobs(sorted, func(p store.Posting) []byte { return p.Place }),
		ints(sorted, func(p store.Posting) int64 { return p.Sequence }),
	}
}

// AddPostings implements store.Search.
func (s *Store) AddPostings(ctx context.Context, postings []store.Posting) (added int64, err error) {
	return s.addPostings(ctx, insertPostingsSQL, postingParameters(postings))
}

// addPostings returns how many rows an insert has written.
func (s *Store) addPostings(ctx context.Context, insert string, parameters [][]byte) (written int64, err error) {
	rt := new(roundTrip)
	fetch(rt, insert+" returning 1::bigint", func(r *row) int64 { return r.int() }, func(n int64) { written += n }, parameters...)
	err = s.runTransaction(ctx, "add postings", rt)
	return written, err
}

// Postings implements store.Search.
func (s *Store) Postings(ctx context.Context, q store.PostingQuery) ([]store.Posting, error) {
	query, args := selectPostingsSQL, []any{int64(q.Term), notNil(q.From), q.Limit}
	if q.Before != nil {
		query, args = selectPostingsBeforeSQL, append(args, q.Before)
	}
	return list(ctx, s, "postings", query, args, func(r *row) store.Posting {
		return store.Posting{Term: q.Term, Place: r.bytes(), Sequence: r.int()}
	})
}

const (
	putReceiptPostingsSQL = `insert into receipt_postings (term, block, receipts) select * from unnest($1::bigint[], $2::bigint[], $3::bigint[])
		on conflict (term, block) do update set receipts = receipt_postings.receipts | excluded.receipts
		where receipt_postings.receipts | excluded.receipts <> receipt_postings.receipts`
	selectReceiptPostingsSQL = `select block, receipts from receipt_postings where term = $1 and block between $2 and $3 order by block desc limit $4`
)

func sendReceiptPostings(rt *roundTrip, postings []store.ReceiptPosting) {
	if len(postings) > 0 {
		rt.send(putReceiptPostingsSQL, receiptPostingParameters(postings)...)
	}
}

func receiptPostingParameters(postings []store.ReceiptPosting) [][]byte {
	merged := store.MergeReceiptPostings(postings)
	return [][]byte{
		ints(merged, func(p store.ReceiptPosting) int64 { return int64(p.Term) }),
		ints(merged, func(p store.ReceiptPosting) int64 { return p.Block }),
		ints(merged, func(p store.ReceiptPosting) int64 { return int64(p.Receipts) }), //nolint:gosec // the same 64 bits
	}
}

// AddReceiptPostings implements store.Search.
func (s *Store) AddReceiptPostings(ctx context.Context, postings []store.ReceiptPosting) (changed int64, err error) {
	return s.addPostings(ctx, putReceiptPostingsSQL, receiptPostingParameters(postings))
}

// ReceiptPostings implements store.Search.
func (s *Store) ReceiptPostings(ctx context.Context, q store.ReceiptPostingQuery) ([]store.ReceiptPosting, error) {
	return list(ctx, s, "receipt postings", selectReceiptPostingsSQL, []any{int64(q.Term), q.From, q.To, q.Limit}, func(r *row) store.ReceiptPosting {
		return store.ReceiptPosting{Term: q.Term, Block: r.int(), Receipts: uint64(r.int())} //nolint:gosec // the same 64 bits
	})
}
