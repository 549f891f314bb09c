package verify

import (
	"context"
	"errors"
	"testing"

	"countersign/internal/evidence"
	"countersign/internal/ledger"
	"countersign/internal/store"
	"countersign/internal/store/storetest"
)

// withoutChains is a database that has lost a chain, and that fails or not when it is asked for it.
type withoutChains struct {
	store.Store
	chain error
}

func (db withoutChains) Epoch() int64 { return 0 }

func (db withoutChains) ChainRows(context.Context, ledger.OrgID, ledger.ChainID, int) (*store.ChainRows, error) {
	return nil, store.ErrNotFound
}

func (db withoutChains) Chain(context.Context, ledger.ChainID) (*store.ChainRecord, error) {
	return nil, db.chain
}

// A verification whose chain is missing has failed, and names none. If the chain could not be read,
// there is no verification: it would look as if the chain were not authentic.
func TestChainsThatCannotBeRead(t *testing.T) {
	t.Parallel()
	unreadable := errors.New("the page is damaged")
	receipt := sealedAlone(t, 1)
	for _, test := range []struct{ chain, want error }{{store.ErrNotFound, nil}, {unreadable, unreadable}} {
		j := New(Config{Store: evidence.New(withoutChains{chain: test.chain}, storetest.Ring{}), Keys: storetest.Ring{}, Now: func() ledger.Time { return 2 }})
		v, err := j.Receipts.Verify(t.Context(), receipt, InFull)
		if !errors.Is(err, test.want) {
			t.Errorf("%v: verifying says %v", test.chain, err)
		}
		if err != nil {
			continue
		}
		if overall, _ := v.Conclude(); overall != ledger.VerdictFailed || v.Chain != nil || v.ReceiptNumber == "" {
			t.Errorf("%v: verified as %+v", test.chain, v)
		}
	}
}
