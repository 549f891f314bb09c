package evidence

import (
	"context"
	"testing"

	"github.com/google/uuid"

	"countersign/internal/ledger"
	"countersign/internal/store"
	"countersign/internal/store/storetest"
)

// unsealedTokens is a database with tokens that may lack an authenticator or name no act.
type unsealedTokens struct {
	*storedLog
	tokens []*store.TokenRecord
}

func (db *unsealedTokens) Keys(context.Context, ledger.OrgID, ledger.KeyID, int) ([]*ledger.KeyRecord, error) {
	return nil, nil
}

func (db *unsealedTokens) UnsealedRows(_ context.Context, _ ledger.OrgID, limit int) (*store.Rows, error) {
	rows := new(store.Rows)
	for _, token := range db.tokens {
		if (len(token.MAC) == 0 || token.Act == 0) && len(rows.Tokens) < limit {
			found := *token
			rows.Tokens = append(rows.Tokens, &found)
		}
	}
	return rows, nil
}

func (db *unsealedTokens) SealRows(_ context.Context, rows *store.Rows) error {
	for _, sealed := range rows.Tokens {
		for _, token := range db.tokens {
			if token.ID == sealed.ID {
				token.MAC, token.Act = sealed.MAC, sealed.Act
			}
		}
	}
	return nil
}

// Rows that are not trusted do not keep those behind them from being sealed, however many there are: what
// is left out is refused from then on.
func TestUntrustedRowsHideNoOthers(t *testing.T) {
	t.Parallel()
	for _, forged := range []int{0, 1, trustPage - 1, trustPage, 3*trustPage + 1} {
		db := &unsealedTokens{storedLog: newStoredLog(t, 1)}
		s := New(db, storetest.Ring{})
		add := func(count int, seal func(*store.TokenRecord)) {
			for range count {
				token := &store.TokenRecord{ID: ledger.TokenID{UUID: uuid.New()}, Org: db.org.ID}
				seal(token)
				db.tokens = append(db.tokens, token)
			}
		}
		const authentic = 2*trustPage + 1
		add(forged, func(*store.TokenRecord) {})
		add(authentic, s.sealToken)
		taken, err := s.SealExisting(t.Context(), db.org.ID, TrustNumbers)
		if err != nil || taken != authentic {
			t.Errorf("behind %d forged rows, %d were sealed, want %d (%v)", forged, taken, authentic, err)
		}
		for i, token := range db.tokens {
			if sealed := token.Act > 0 && s.checkToken(token) == nil; sealed != (i >= forged) {
				t.Fatalf("row %d of %d, with %d forged ones: sealed %t", i, len(db.tokens), forged, sealed)
			}
		}
	}
}
