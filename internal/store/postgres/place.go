package postgres

import (
	"context"

	"github.com/google/uuid"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

// Strangers may ask for these as often as they like: what is asked for at the
// same time is read by one statement. Doubles are found once.
const (
	receiptOfR       = `r.id, r.org_id, r.sequence, r.chain_id, r.previous_hash, r.body`
	namedReceiptsSQL = `select ` + receiptOfR + `, coalesce(o.slug, '') from receipts r left join organizations o on o.id = r.org_id
		where r.id = any($1::uuid[])`

	// A placed receipt is one row, and one for each beside it, that say whose place
	// it is.
	placedColumns = `me.id, r.sequence - me.sequence, ` + receiptOfR + `, coalesce(o.slug, ''),
			exists (select from anchors a where a.org_id = me.org_id and a.kind = 'head' and a.method in ('tsa', 'opentimestamps')
				and a.sequence >= me.sequence),
			h.org_id, h.count, h.last_hash, h.key_id, h.mac`
	placedTables = ` left join organizations o on o.id = me.org_id left join heads h on h.org_id = me.org_id
		left join receipts r on r.org_id = me.org_id and r.sequence between me.sequence - 1 and me.sequence + 1 `

	placedReceiptsSQL = `select ` + placedColumns + ` from receipts me` + placedTables + `where me.id = any($1::uuid[])`
	activeTokensSQL   = `select t.*, ` + placedColumns + ` from (
			select ` + tokenColumns + ` from tokens
			where hash = any($1::bytea[]) and revoked_at is null and (expires_at is null or expires_at > $2)
		) t left join receipts me on t.artifact = 'receipt' and me.id = t.artifact_id` + placedTables
)

func receiptUUID(id ledger.ReceiptID) uuid.UUID { return id.UUID }

// heldToken asks for a token that is held at a moment.
type heldToken struct {
	hash [32]byte
	now  ledger.Time
}

// ActiveToken implements store.Verification.
func (s *Store) ActiveToken(ctx context.Context, hash [32]byte, now ledger.Time) (*store.ActiveToken, error) {
	return s.tokens.get(ctx, heldToken{hash: hash, now: now})
}

// readTokens judges all by the latest of their moments, which has come for each.
func (s *Store) readTokens(ctx context.Context, wanted []heldToken) (map[heldToken]*store.ActiveToken, error) {
	now := wanted[0].now
	for _, token := range wanted {
		now = max(now, token.now)
	}
	byHash := make(map[[32]byte]*store.ActiveToken, len(wanted))
	read := func(r *row) *store.ActiveToken {
		record := readToken(r)
		token := byHash[record.Hash]
		if token == nil {
			token = &store.ActiveToken{TokenRecord: record}
			byHash[record.Hash] = token
		}
		if r.null() {
			r.rest() // of an approval, or of nothing
			return token
		}
		if r.id(); token.Receipt == nil {
			token.Receipt = new(store.PlacedReceipt)
		}
		readPlace(r, token.Receipt)
		return token
	}
	hashes := blobs(wanted, func(t heldToken) []byte { return t.hash[:] })
	err := askAlone(ctx, s, "token", activeTokensSQL, read, func(*store.ActiveToken) {}, hashes, number(int64(now)))
	found := make(map[heldToken]*store.ActiveToken, len(wanted))
	for _, token := range wanted {
		if record := byHash[token.hash]; record != nil {
			found[token] = record
		}
	}
	return found, err
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
	return found, askAlone(ctx, s, "receipt", namedReceiptsSQL, read, keep, ids(wanted, receiptUUID))
}

// PlacedReceipt implements store.Reader.
func (s *Store) PlacedReceipt(ctx context.Context, id ledger.ReceiptID) (*store.PlacedReceipt, error) {
	return s.placed.get(ctx, id)
}

func (s *Store) readPlaced(ctx context.Context, wanted []ledger.ReceiptID) (map[ledger.ReceiptID]*store.PlacedReceipt, error) {
	found := make(map[ledger.ReceiptID]*store.PlacedReceipt, len(wanted))
	read := func(r *row) *store.PlacedReceipt {
		id := ledger.ReceiptID{UUID: r.id()}
		placed := found[id]
		if placed == nil {
			placed = new(store.PlacedReceipt)
			found[id] = placed
		}
		readPlace(r, placed)
		return placed
	}
	return found, askAlone(ctx, s, "receipt", placedReceiptsSQL, read, func(*store.PlacedReceipt) {}, ids(wanted, receiptUUID))
}

// readPlace reads the receipt itself or one beside it.
func readPlace(r *row, placed *store.PlacedReceipt) {
	switch offset, receipt := r.int(), readReceipt(r); offset {
	case -1:
		placed.Previous = receipt
	case 1:
		placed.Next = receipt
	default:
		placed.StoredReceipt = receipt
	}
	placed.Slug, placed.Anchored = r.text(), r.bool()
	if placed.Head != nil || r.null() {
		r.rest() // read before, or missing
		return
	}
	placed.Head = readHead(r)
}
