package postgres

import (
	"context"
	"math"

	"github.com/google/uuid"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

const selectReceipts = `select ` + receiptColumns + ` from receipts `

// Receipt implements store.Reader.
func (s *Store) Receipt(ctx context.Context, id ledger.ReceiptID) (*ledger.StoredReceipt, error) {
	return one(ctx, s, "receipt", selectReceipts+`where id = $1`, []any{bytesOf(id.UUID)}, readReceipt)
}

// ReceiptOfChain implements store.Reader.
func (s *Store) ReceiptOfChain(ctx context.Context, chain ledger.ChainID) (*ledger.StoredReceipt, error) {
	return one(ctx, s, "receipt of chain", selectReceipts+`where chain_id = $1`, []any{bytesOf(chain.UUID)}, readReceipt)
}

// Receipts implements store.Reader.
func (s *Store) Receipts(ctx context.Context, org ledger.OrgID, before int64, limit int) ([]*ledger.StoredReceipt, error) {
	return list(ctx, s, "receipts", selectReceipts+`where org_id = $1 and sequence <= $2 order by sequence desc limit $3`,
		[]any{bytesOf(org.UUID), lastBefore(before), limit}, readReceipt)
}

// Epoch implements store.Reader. PostgreSQL does not count the commits of others.
func (s *Store) Epoch() int64 { return 0 }

// Head implements store.Reader.
func (s *Store) Head(ctx context.Context, org ledger.OrgID) (*ledger.Head, error) {
	return one(ctx, s, "head", `select `+headColumns+` from heads where org_id = $1`, []any{bytesOf(org.UUID)}, readHead)
}

// ScanReceipts implements store.Reader. The record is a view of the connection's buffer: an audit
// reads every receipt and must not copy them.
func (s *Store) ScanReceipts(ctx context.Context, org ledger.OrgID, from, to int64, visit func(*ledger.StoredReceipt) error) error {
	const sql = selectReceipts + `where org_id = $1 and sequence between $2 and $3 order by sequence limit $4`
	receipt, last := new(ledger.StoredReceipt), from
	return scanPages(scanPage, func() (int, error) {
		count := 0
		err := s.query(ctx, "scan receipts", sql, []any{bytesOf(org.UUID), from, to, scanPage}, func(r *row) error {
			borrowReceipt(r, receipt)
			count++
			last = receipt.Sequence
			return show(r, receipt, visit)
		})
		if last == math.MaxInt64 {
			return 0, err // there can be no later one
		}
		from = last + 1
		return count, err
	})
}

// ScanBodies implements store.Reader. The additional columns that ScanReceipts reads cost nothing
// here, because they are in the connection's buffer anyway.
func (s *Store) ScanBodies(ctx context.Context, org ledger.OrgID, from, to int64, visit func(body []byte) error) error {
	return s.ScanReceipts(ctx, org, from, to, func(r *ledger.StoredReceipt) error { return visit(r.Body) })
}

// borrowReceipt reads a receipt without copying its bytes.
func borrowReceipt(r *row, receipt *ledger.StoredReceipt) {
	receipt.ID.UUID, receipt.Org.UUID, receipt.Sequence, receipt.Chain.UUID = r.id(), r.id(), r.int(), r.id()
	receipt.PreviousHash, receipt.Body = r.borrow(), r.borrow()
}

// Unauthenticated callers may request these at any rate, so concurrent requests are read with one
// statement. Duplicate ids are found once.
const (
	namedReceiptsSQL = `select r.id, r.org_id, r.sequence, r.chain_id, r.previous_hash, r.body, coalesce(o.slug, '')
		from receipts r left join organizations o on o.id = r.org_id where r.id = any($1::uuid[])`

	// A placed receipt is one row: the receipt, its organization's slug and head, and its two
	// neighbours.
	placedColumns = `me.id, me.org_id, me.sequence, me.chain_id, me.previous_hash, me.body, coalesce(o.slug, ''),
			exists (select from anchors a where a.org_id = me.org_id and a.kind = 'head' and a.method in ('tsa', 'opentimestamps')
				and a.sequence >= me.sequence),
			h.org_id, h.count, h.last_hash, h.key_id, h.mac,
			p.id, p.org_id, p.sequence, p.chain_id, p.previous_hash, p.body,
			n.id, n.org_id, n.sequence, n.chain_id, n.previous_hash, n.body`
	placedTables = ` left join organizations o on o.id = me.org_id left join heads h on h.org_id = me.org_id
		left join receipts p on p.org_id = me.org_id and p.sequence = case when me.sequence > 1 then me.sequence - 1 end
		left join receipts n on n.org_id = me.org_id and n.sequence = case when me.sequence < 9223372036854775807 then me.sequence + 1 end `

	placedReceiptsSQL = `select ` + placedColumns + ` from receipts me` + placedTables + `where me.id = any($1::uuid[])`
	activeTokensSQL   = `select t.*, ` + placedColumns + ` from (
			select ` + tokenColumns + ` from tokens
			where hash = any($1::bytea[]) and revoked_at is null and coalesce(expires_at, 9223372036854775807) > $2
		) t left join receipts me on t.artifact = 'receipt' and me.id = t.artifact_id` + placedTables
)

func receiptUUID(id ledger.ReceiptID) uuid.UUID { return id.UUID }

// tokenAt is a token that must be active at the given time.
type tokenAt struct {
	hash [32]byte
	now  ledger.Time
}

// ActiveToken implements store.Verification.
func (s *Store) ActiveToken(ctx context.Context, hash [32]byte, now ledger.Time) (*store.ActiveToken, error) {
	return s.tokens.get(ctx, tokenAt{hash: hash, now: now})
}

// readTokens uses the latest of the requested times for all of them. None of the times is in the
// future.
func (s *Store) readTokens(ctx context.Context, wanted []tokenAt) (map[tokenAt]*store.ActiveToken, error) {
	now := wanted[0].now
	for _, token := range wanted {
		now = max(now, token.now)
	}
	byHash := make(map[[32]byte]*store.ActiveToken, len(wanted))
	keep := func(t *store.ActiveToken) { byHash[t.Hash] = t }
	hashes := blobs(wanted, func(t tokenAt) []byte { return t.hash[:] })
	err := fetchNow(ctx, s, "token", activeTokensSQL, readActiveToken, keep, hashes, intParameter(int64(now)))
	found := make(map[tokenAt]*store.ActiveToken, len(wanted))
	for _, token := range wanted {
		if record := byHash[token.hash]; record != nil {
			found[token] = record
		}
	}
	return found, err
}

func readActiveToken(r *row) *store.ActiveToken {
	token, placed := readToken(r), readPlaced(r)
	return &store.ActiveToken{TokenRecord: token, Receipt: func(context.Context) (*store.PlacedReceipt, error) { return placed, nil }}
}

// NamedReceipt implements store.Reader.
func (s *Store) NamedReceipt(ctx context.Context, id ledger.ReceiptID) (*store.NamedReceipt, error) {
	return s.named.get(ctx, id)
}

func (s *Store) readNamed(ctx context.Context, wanted []ledger.ReceiptID) (map[ledger.ReceiptID]*store.NamedReceipt, error) {
	found := make(map[ledger.ReceiptID]*store.NamedReceipt, len(wanted))
	read := func(r *row) *store.NamedReceipt {
		return &store.NamedReceipt{StoredReceipt: readReceipt(r), Slug: r.text()}
	}
	keep := func(r *store.NamedReceipt) { found[r.ID] = r }
	return found, fetchNow(ctx, s, "receipt", namedReceiptsSQL, read, keep, ids(wanted, receiptUUID))
}

// PlacedReceipt implements store.Reader.
func (s *Store) PlacedReceipt(ctx context.Context, id ledger.ReceiptID) (*store.PlacedReceipt, error) {
	return s.placed.get(ctx, id)
}

func (s *Store) readPlaces(ctx context.Context, wanted []ledger.ReceiptID) (map[ledger.ReceiptID]*store.PlacedReceipt, error) {
	found := make(map[ledger.ReceiptID]*store.PlacedReceipt, len(wanted))
	keep := func(r *store.PlacedReceipt) { found[r.ID] = r }
	return found, fetchNow(ctx, s, "receipt", placedReceiptsSQL, readPlaced, keep, ids(wanted, receiptUUID))
}

// readPlaced returns nil if there is no receipt.
func readPlaced(r *row) *store.PlacedReceipt {
	receipt := readIfAny(r, receiptWidth, readReceipt)
	if receipt == nil {
		r.skip(placeWidth)
		return nil
	}
	placed := &store.PlacedReceipt{NamedReceipt: store.NamedReceipt{StoredReceipt: receipt, Slug: r.text()}, Anchored: r.bool()}
	placed.Head = readIfAny(r, headWidth, readHead)
	placed.Previous = readIfAny(r, receiptWidth, readReceipt)
	placed.Next = readIfAny(r, receiptWidth, readReceipt)
	return placed
}

const (
	receiptWidth = 6
	headWidth    = 5
	placeWidth   = 2 + headWidth + 2*receiptWidth // the columns after the receipt's own
)

// readIfAny returns nil if the record's first value is null.
func readIfAny[T any](r *row, width int, read func(*row) *T) *T {
	if r.null() {
		r.skip(width - 1)
		return nil
	}
	return read(r)
}
