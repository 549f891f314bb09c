package verify

import (
	"context"
	"errors"
	"math"
	"runtime"
	"sync"
	"sync/atomic"

	"countersign/internal/evidence"
	"countersign/internal/ledger"
	"countersign/internal/store"
)

// AuditOptions say how deep to look.
type AuditOptions struct {
	// ReceiptsOnly checks the signatures and links of the stored bytes and leaves
	// everything else alone.
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
	Acts         int64         `json:"acts_checked"`
	NotChecked   []string      `json:"not_checked"`
	Break        *ledger.Break `json:"first_break"`
	// Further is what was done to the findings, where something else broke first: it
	// must not hide behind the tampering that the findings are about.
	Further *ledger.Break `json:"further_break,omitempty"`
	// PutBack are the chains that are not those which were acknowledged, but for the one
	// that Break is about. They hide behind no other tampering.
	PutBack []*ledger.Break `json:"chains_put_back,omitempty"`
}

// LedgerAudit is an audit with the head that it began under.
type LedgerAudit struct {
	*AuditReport
	HeadCount  int64  // how many receipts the stored head counts
	LastNumber string // of the newest receipt that verifies by itself; "" where none does
}

// The verdicts of an audit.
const (
	AuditIntact = "intact"
	AuditBroken = "broken"
)

// Audit walks an organization's whole ledger: every receipt's signature, columns
// and links, the head, and, unless told otherwise, every event of every chain.
// It returns an error only when it could not read; tampering is in the report.
func (j *Judge) Audit(ctx context.Context, org *ledger.Organization, options AuditOptions) (*AuditReport, error) {
	a := &audit{judge: j, org: org, options: options}
	report := &AuditReport{Organization: org.Slug, Status: AuditIntact, NotChecked: []string{}}
	if options.ReceiptsOnly {
		report.NotChecked = append(report.NotChecked, string(ledger.CheckColumns), string(ledger.CheckEventsDigest), string(ledger.CheckChain), string(ledger.CheckApprovals), string(ledger.CheckAuditLog), string(ledger.CheckAnchors), string(ledger.CheckRegistry), string(ledger.CheckAccess), string(ledger.CheckFindings), string(ledger.CheckQueue), string(ledger.CheckBudgets), string(ledger.CheckTransparency))
	}
	found, err := a.run(ctx)
	if err != nil {
		return nil, err
	}
	report.Receipts, report.Chains, report.Events = a.receipts.Load(), a.chains.Load(), a.events.Load()
	report.Acts = a.acts.Load()
	if !options.ReceiptsOnly {
		lost, err := a.inspectFindings(ctx)
		switch {
		case found == nil && err != nil:
			return nil, err
		case found == nil:
			found = lost
		default:
			report.Further = lost
		}
	}
	if !options.ReceiptsOnly {
		back, err := a.putBackChains(ctx)
		if err != nil {
			return nil, err
		}
		if found == nil && len(back) > 0 {
			found, back = back[0], back[1:]
		}
		report.PutBack = back
	}
	if found != nil {
		report.Status, report.Break = AuditBroken, found
	}
	return report, nil
}

// AuditLedger is Audit with the head that it began under.
func (j *Judge) AuditLedger(ctx context.Context, id ledger.OrgID, options AuditOptions) (*LedgerAudit, error) {
	org, err := j.store.Organization(ctx, id)
	if err != nil {
		return nil, err
	}
	audit := &LedgerAudit{}
	head, err := j.store.Head(ctx, id)
	if err == nil {
		audit.HeadCount = head.Count
	} else if !errors.Is(err, store.ErrNotFound) {
		return nil, err
	}
	newest, err := j.store.Receipts(ctx, id, 0, 1)
	if err != nil {
		return nil, err
	}
	for _, receipt := range newest {
		if check := ledger.CheckReceipt(receipt, org.Slug, j.keys); check.Valid {
			audit.LastNumber = check.Number
		}
	}
	audit.AuditReport, err = j.Audit(ctx, org, options)
	return audit, err
}

type audit struct {
	judge    *Judge
	org      *ledger.Organization
	options  AuditOptions
	receipts atomic.Int64
	chains   atomic.Int64
	events   atomic.Int64
	acts     atomic.Int64

	mostAnchors int   // of those that were made, the newest; 0: all
	mostActs    int64 // that are read; 0: all
	mostChains  int   // that are held against what is remembered of them; 0: all
	mostCounted int   // events that budgets are counted anew from, the newest; 0: all

	failing []evidence.Failing // rows, once they are read
	budgets []*ledger.Break    // counters that do not say what the events do, once they are counted anew

	records      map[ledger.Record]changedBy // that the audit log names, once it is walked
	recordsUntil ledger.LogEnd               // how far it was walked
	imports      map[string]importSaid       // of approvals, by their ids
}

// A worker takes so many receipts at once: enough to forget the cost of opening a
// scan, few enough that memory stays constant and every worker has a share.
const (
	leastSegment = 2048
	mostSegment  = 16384
)

func segmentSize(receipts int64, workers int) int64 {
	return min(max(receipts/int64(4*workers), leastSegment), mostSegment)
}

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
		head, err := a.judge.store.Head(ctx, a.org.ID)
		if err != nil && !errors.Is(err, store.ErrNotFound) {
			return nil, err
		}
		if again, err := a.newest(ctx); err != nil {
			return nil, err
		} else if again > newest {
			continue // receipts were sealed meanwhile: walk on to them
		}
		if found := walk.Finish(head, a.judge.keys); found != nil {
			return found, nil
		}
		if found, err := a.inspectPast(ctx); found != nil || err != nil || a.options.ReceiptsOnly {
			return found, err
		}
		if found, err := a.inspectChains(ctx, walk); found != nil || err != nil {
			return found, err
		}
		if found, err := a.inspectActs(ctx); found != nil || err != nil {
			return found, err
		}
		for _, inspect := range a.rows() {
			if found, err := inspect(ctx); found != nil || err != nil {
				return found, err
			}
		}
		return nil, nil
	}
}

// newest is the last receipt's sequence, 0 when there is none. Receipts that
// stand where none can be count as one: the walk from 1 comes upon them.
func (a *audit) newest(ctx context.Context) (int64, error) {
	receipts, err := a.judge.store.Receipts(ctx, a.org.ID, 0, 1)
	if err != nil || len(receipts) == 0 {
		return 0, err
	}
	return max(receipts[0].Sequence, 1), nil
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
		size := segmentSize(newest-walk.Checked, workers)
		for from := walk.Checked + 1; from <= newest; from += size {
			s := &segment{from: from, to: min(from+size-1, newest), done: make(chan struct{})}
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
	from := s.from
	if from == 1 {
		from = math.MinInt64 // what stands before the first shows as well
	}
	step := func(r *ledger.StoredReceipt, in ledger.Inspection) error {
		if s.found = s.walk.Step(r, &in); s.found != nil {
			return errBroken
		}
		return nil
	}
	var err error
	if a.options.ReceiptsOnly {
		r := &ledger.StoredReceipt{}
		err = a.judge.store.ScanBodies(ctx, a.org.ID, from, s.to, func(body []byte) error {
			in := ledger.InspectBytes(body, a.org.ID, a.judge.keys, r)
			if in.Fault != "" {
				r.Sequence = s.walk.Checked + 1 // what it claims counts for nothing: it stands where the next belongs
			}
			return step(r, in)
		})
	} else {
		err = a.judge.store.ScanReceipts(ctx, a.org.ID, from, s.to, func(r *ledger.StoredReceipt) error {
			in := ledger.Inspect(r, a.org.Slug, a.judge.keys)
			if err := step(r, in); err != nil {
				return err
			}
			seen = append(seen, sealedChain{r.ID, r.Chain, in.Attested.Clone(), r.Sequence, s.walk.Label(r.Sequence), in.Hash})
			return nil
		})
	}
	if err != nil && !errors.Is(err, errBroken) {
		s.err = err
		return
	}
	// The events come after the scan, so that no connection waits for another.
	for _, sealed := range seen {
		found, err := a.inspectSealed(ctx, &sealed)
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
