package bench

import (
	"context"
	"crypto/rand"
	"fmt"
	"time"

	"github.com/google/uuid"

	"countersign/internal/canon"
	"countersign/internal/ledger"
	"countersign/internal/store"
)

// filler writes real records, as the service would, but many to a transaction.
type filler struct {
	*records
	action ledger.Action
	opened ledger.Chain // what the chains have in common
}

func newFiller(r *records) (*filler, error) {
	f := &filler{records: r}
	request, err := canon.Parse([]byte(chainBody))
	if err != nil {
		return nil, err
	}
	chain, err := ledger.ParseChainRequest(request)
	if err != nil {
		return nil, err
	}
	f.opened = *chain
	f.opened.Org, f.opened.OpenedBy = r.org.ID, r.agent.Record.ID
	f.opened.StartedAt = ledger.TimeOf(time.Now())
	f.opened.FailModes, f.opened.FastPath = r.org.Settings.CanonicalFailModes(), true
	body, err := canon.Parse([]byte(eventHead + "filled" + eventTail))
	if err != nil {
		return nil, err
	}
	action, err := ledger.ParseAction(body)
	if err != nil {
		return nil, err
	}
	f.action = *action
	return f, nil
}

// filled names what was written.
type filled struct {
	org      string // its slug
	receipts []ledger.ReceiptID
	body     []byte // of the last receipt
	reviewer string // a key that may decide approvals
	// waiters are keys under which clients wait, each for as many as a key may.
	waiters []string
	// noisyAgent and noisyAdmin are keys of another organization.
	noisyAgent, noisyAdmin string
	tokens                 []string
	dead                   map[string]string // tokens that open nothing, by why
	expires                ledger.Time       // of the one that expires
}

// eventsPerBatch bounds a transaction's memory.
const eventsPerBatch = 5000

// fill writes chains with so many events each, sealed if asked for. A batch is
// computed before its transaction begins: PostgreSQL ends a transaction that idles,
// and on a busy machine computing takes seconds.
func (r *records) fill(ctx context.Context, chains, events int, seal bool) (*filled, error) {
	f, err := newFiller(r)
	if err != nil {
		return nil, err
	}
	needs := &store.Needs{Orgs: []ledger.OrgID{r.org.ID}}
	var head *ledger.OpenHead
	if seal {
		needs.Heads = needs.Orgs
		// Nothing else seals here, so the head stays what the last batch made it.
		stored, err := r.store.Head(ctx, r.org.ID)
		if err != nil {
			return nil, fmt.Errorf("read the head: %w", err)
		}
		if head, err = stored.Open(r.ring); err != nil {
			return nil, err
		}
	}
	done := &filled{}
	size := max(1, eventsPerBatch/max(events, 1))
	for left := chains; left > 0; left -= size {
		changes := &store.Changes{}
		for range min(size, left) {
			if err := f.add(changes, done, events, head); err != nil {
				return nil, err
			}
		}
		if head != nil {
			changes.Heads = append(changes.Heads, head.Sign(r.ring))
		}
		err := r.store.Transact(ctx, needs, func(*store.Loaded) (*store.Changes, error) { return changes, nil })
		if err != nil {
			return nil, fmt.Errorf("fill the store: %w", err)
		}
	}
	return done, nil
}

// add makes one chain; with a head it is sealed.
func (f *filler) add(changes *store.Changes, done *filled, events int, head *ledger.OpenHead) error {
	now := ledger.TimeOf(time.Now())
	chain := f.opened
	chain.ID, chain.StartedAt = ledger.ChainID{UUID: ledger.NewTimedID(now, random10())}, now
	state := ledger.NewChainState(now, ledger.BuiltinPolicy.Version)
	var summary ledger.Summary
	for i := range events {
		action := f.action
		action.IdempotencyKey = fmt.Sprintf("%0*x", keyWidth, i)
		action.ActionName = actionNames[i%len(actionNames)]
		recorded := f.record(state, &chain, &action, now)
		changes.NewEvents = append(changes.NewEvents, recorded.Stored)
		if head != nil {
			summary.Count(recorded.Event)
		}
	}
	if head != nil {
		id := ledger.ReceiptID{UUID: ledger.NewRandomID(random16())}
		_, stored, err := ledger.Seal(&ledger.Sealing{
			Keys: f.ring, Head: head, Slug: f.org.Slug, Chain: &chain, State: state, Summary: &summary,
			Completion: &ledger.Completion{}, ID: id, Now: now,
		})
		if err != nil {
			return err
		}
		changes.NewReceipts = append(changes.NewReceipts, stored.StoredReceipt)
		done.receipts, done.body = append(done.receipts, id), stored.Body
	}
	record := &store.ChainRecord{
		ID: chain.ID, Org: chain.Org, OpenedBy: chain.OpenedBy, ExternalID: chain.ExternalID,
		Environment: chain.Environment, Body: chain.Encode(), Status: state.Status,
	}
	record.State, record.MAC = state.Encode(f.ring, &chain)
	changes.NewChains = append(changes.NewChains, record)
	return nil
}

// record enters an action that nobody has to be asked about.
func (f *filler) record(state *ledger.ChainState, chain *ledger.Chain, action *ledger.Action, now ledger.Time) *ledger.Recorded {
	return state.Record(&ledger.Recording{
		Keys: f.keys(), Policy: ledger.BuiltinPolicy, Org: f.org, Chain: chain, Action: action, Now: now, Random: random10(),
		NewApproval: func() ledger.ApprovalID { panic("an action of the bench must be allowed") },
	})
}

// keys are placeholders where no store is behind the records.
func (f *filler) keys() ledger.Keys {
	if f.ring == nil {
		return placeholderKeys{}
	}
	return f.ring
}

type placeholderKeys struct{}

func (placeholderKeys) CurrentKey() string { return "placeholder" }

func (placeholderKeys) MAC(string, uuid.UUID, ledger.Purpose, ...[]byte) (mac [32]byte, ok bool) {
	return mac, true
}

func random10() (b [10]byte) {
	_, _ = rand.Read(b[:]) // never fails
	return b
}

func random16() (b [16]byte) {
	_, _ = rand.Read(b[:]) // never fails
	return b
}
