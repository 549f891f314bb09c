package service

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

// AuditOptions say how deep to look.
type AuditOptions struct {
	// ReceiptsOnly checks signatures and links and leaves the events alone.
	ReceiptsOnly bool
	// Progress hears of receipts done; it may be called from several goroutines.
	Progress func(done, total int64)
}

// AuditReport is the verdict on one organization's ledger.
type AuditReport struct {
	Organization string        `json:"organization"`
	Status       string        `json:"status"` // "intact" or "broken"
	Receipts     int64         `json:"receipts_checked"`
	Chains       int64         `json:"chains_checked"`
	Events       int64         `json:"events_checked"`
	NotChecked   []string      `json:"not_checked"`
	Break        *ledger.Break `json:"first_break"`
}

// The verdicts of an audit.
const (
	AuditIntact = "intact"
	AuditBroken = "broken"
)

// Audit walks an organization's whole ledger: every receipt's signature, columns
// and links, the head, and, unless told otherwise, every event of every chain.
// It returns an error only when it could not read; tampering is in the report.
func (o *Operator) Audit(ctx context.Context, slug string, options AuditOptions) (*AuditReport, error) {
	org, err := o.organization(ctx, slug)
	if err != nil {
		return nil, err
	}
	a := &audit{service: o.service, org: org, options: options}
	report := &AuditReport{Organization: slug, Status: AuditIntact, NotChecked: []string{}}
	if options.ReceiptsOnly {
		report.NotChecked = append(report.NotChecked, string(ledger.CheckEventsDigest), string(ledger.CheckChain))
	}
	found, err := a.run(ctx)
	if err != nil {
		return nil, visible(err)
	}
	report.Receipts, report.Chains, report.Events = a.receipts.Load(), a.chains.Load(), a.events.Load()
	if found != nil {
		report.Status, report.Break = AuditBroken, found
	}
	return report, nil
}

type audit struct {
	service  *Service
	org      *ledger.Organization
	options  AuditOptions
	receipts atomic.Int64
	chains   atomic.Int64
	events   atomic.Int64
}

// segmentSize is how many receipts a worker takes at once: enough to forget the
// cost of a query, few enough that memory stays constant.
const segmentSize = 2048

func (a *audit) run(ctx context.Context) (*ledger.Break, error) {
	walk := ledger.NewWalk()
	for {
		newest, err := a.newest(ctx)
		if err != nil {
			return nil, err
		}
		found, err := a.walkTo(ctx, walk, newest)
		if found != nil || err != nil {
			return found, err
		}
		head, err := a.service.store.Head(ctx, a.org.ID)
		if err != nil && !errors.Is(err, store.ErrNotFound) {
			return nil, err
		}
		if again, err := a.newest(ctx); err != nil {
			return nil, err
		} else if again > newest {
			continue // receipts were sealed meanwhile: walk on to them
		}
		if found := walk.Finish(head, a.service.keys); found != nil || a.options.ReceiptsOnly {
			return found, nil
		}
		return a.inspectChains(ctx)
	}
}

func (a *audit) newest(ctx context.Context) (int64, error) {
	receipts, err := a.service.store.Receipts(ctx, a.org.ID, 0, 1)
	if err != nil || len(receipts) == 0 {
		return 0, err
	}
	return receipts[0].Sequence, nil
}

// segment is one worker's share and what it found there.
type segment struct {
	from, to int64
	walk     *ledger.Walk
	found    *ledger.Break
	err      error
	done     chan struct{}
}

// walkTo inspects the receipts after those walked, in parallel, and joins the
// segments in order, so that the first break is the first.
func (a *audit) walkTo(ctx context.Context, walk *ledger.Walk, newest int64) (*ledger.Break, error) {
	ctx, cancel := context.WithCancel(ctx)
	workers := runtime.GOMAXPROCS(0)
	work := make(chan *segment)
	ordered := make(chan *segment, 2*workers)
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	for range workers {
		running.Go(func() {
			for s := range work {
				a.inspect(ctx, s, newest)
				close(s.done)
			}
		})
	}
	running.Go(func() {
		defer close(ordered)
		defer close(work)
		for from := walk.Checked + 1; from <= newest; from += segmentSize {
			s := &segment{from: from, to: min(from+segmentSize-1, newest), done: make(chan struct{})}
			select {
			case ordered <- s:
			case <-ctx.Done():
				return
			}
			select {
			case work <- s:
			case <-ctx.Done():
				return
			}
		}
	})
	for s := range ordered {
		select {
		case <-s.done:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		if s.err != nil {
			return nil, s.err
		}
		if found := walk.Join(s.walk, s.found); found != nil {
			return found, nil
		}
	}
	return nil, nil
}

var errBroken = errors.New("broken")

func (a *audit) inspect(ctx context.Context, s *segment, total int64) {
	s.walk = ledger.NewWalkFrom(s.from)
	var seen []sealedChain
	err := a.service.store.ScanReceipts(ctx, a.org.ID, s.from, s.to, func(r *ledger.StoredReceipt) error {
		in := ledger.Inspect(r, a.org.Slug, a.service.keys)
		if s.found = s.walk.Step(r, &in); s.found != nil {
			return errBroken
		}
		if !a.options.ReceiptsOnly {
			seen = append(seen, sealedChain{r.Chain, in.EventsDigest, in.Actions, r.Sequence, s.walk.Label(r.Sequence)})
		}
		return nil
	})
	if err != nil && !errors.Is(err, errBroken) {
		s.err = err
		return
	}
	// The events come after the scan, so that no connection waits for another.
	for _, sealed := range seen {
		found, err := a.replay(ctx, sealed)
		if err != nil {
			s.err = err
			return
		}
		if found != nil {
			s.found = found
			break
		}
	}
	done := a.receipts.Add(s.walk.Checked - s.from + 1)
	if a.options.Progress != nil {
		a.options.Progress(done, total)
	}
}

// sealedChain is what a receipt attests of its chain's events.
type sealedChain struct {
	chain    ledger.ChainID
	digest   [32]byte
	actions  int64
	sequence int64
	label    string
}

func (a *audit) replay(ctx context.Context, sealed sealedChain) (*ledger.Break, error) {
	replay, err := a.replayChain(ctx, sealed.chain)
	if err == nil {
		err = replay.Matches(sealed.digest, sealed.actions)
	}
	var fault *evidenceFault
	switch {
	case errors.As(err, &fault), err != nil && replay != nil:
		return &ledger.Break{Sequence: sealed.sequence, ReceiptNumber: sealed.label, Check: ledger.CheckEventsDigest, Detail: err.Error()}, nil
	case err != nil:
		return nil, err
	}
	return nil, nil
}

// evidenceFault tells what the entries say from a failure to read them.
type evidenceFault struct{ error }

// replayChain feeds a chain's entries in the order of their positions: addenda
// say where they stand, events fill the places between.
func (a *audit) replayChain(ctx context.Context, chain ledger.ChainID) (*ledger.Replay, error) {
	const everything = 1 << 52
	addenda, err := a.service.store.Addenda(ctx, chain, 0, everything)
	if err != nil {
		return nil, err
	}
	replay := ledger.NewReplay(chain)
	feedAddenda := func() error {
		for len(addenda) > 0 && addenda[0].Position == replay.Entries()+1 {
			if err := replay.Addendum(addenda[0]); err != nil {
				return &evidenceFault{err}
			}
			addenda = addenda[1:]
		}
		return nil
	}
	for after := int64(-everything); ; {
		events, err := a.service.store.Events(ctx, chain, after, foldPage)
		if err != nil {
			return nil, err
		}
		for _, event := range events {
			if err := errors.Join(feedAddenda(), replay.Event(event)); err != nil {
				return nil, &evidenceFault{err}
			}
			after = event.Sequence
		}
		a.events.Add(int64(len(events)))
		if len(events) < foldPage {
			break
		}
	}
	if err := feedAddenda(); err != nil {
		return nil, err
	}
	if len(addenda) > 0 {
		return nil, &evidenceFault{fmt.Errorf("an entry at position %d is out of place", addenda[0].Position)}
	}
	return replay, nil
}

// inspectChains holds every chain's record against its authenticator, its
// receipt, and, where it is still open, its events.
func (a *audit) inspectChains(ctx context.Context) (*ledger.Break, error) {
	var found *ledger.Break
	err := a.service.store.ScanChains(ctx, a.org.ID, func(record *store.ChainRecord) error {
		a.chains.Add(1)
		detail, err := a.inspectChain(ctx, record)
		if err != nil {
			return err
		}
		if detail != "" {
			found = &ledger.Break{Check: ledger.CheckChain, Detail: fmt.Sprintf("chain %s: %s", record.ID, detail)}
			return errBroken
		}
		return nil
	})
	if err != nil && !errors.Is(err, errBroken) {
		return nil, err
	}
	return found, nil
}

func (a *audit) inspectChain(ctx context.Context, record *store.ChainRecord) (string, error) {
	chain, err := ledger.DecodeChain(record.Body)
	if err != nil {
		return "the record cannot be read", nil
	}
	if chain.ID != record.ID || chain.Org != record.Org || chain.OpenedBy != record.OpenedBy ||
		chain.ExternalID != record.ExternalID || chain.Environment != record.Environment {
		return "the record's columns do not agree with its body", nil
	}
	state, err := ledger.DecodeChainState(record.State, record.MAC, a.service.keys, chain)
	if err != nil || state.Status != record.Status {
		return "the state fails its authenticator", nil
	}
	if state.Status.Sealed() {
		receipt, err := a.service.store.ReceiptOfChain(ctx, record.ID)
		if errors.Is(err, store.ErrNotFound) || (err == nil && receipt.ID != *state.Receipt) {
			return "it is sealed, but its receipt is not there", nil
		}
		return "", err
	}
	return a.inspectOpen(ctx, record.ID, state)
}

// inspectOpen replays a chain that is still running. Events may arrive between
// the two reads, so a difference counts only while the chain stands still.
func (a *audit) inspectOpen(ctx context.Context, id ledger.ChainID, state *ledger.ChainState) (string, error) {
	replay, err := a.replayChain(ctx, id)
	if err == nil {
		err = replay.Matches(state.Digest, state.Actions)
	}
	if err == nil {
		return "", nil
	}
	var fault *evidenceFault
	if replay == nil && !errors.As(err, &fault) {
		return "", err
	}
	again, readErr := a.service.store.Chain(ctx, id)
	if readErr != nil {
		return "", readErr
	}
	view, viewErr := a.service.view(again)
	if viewErr == nil && view.State.Entries != state.Entries {
		return "", nil
	}
	return err.Error(), nil
}
