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

// AuditOptions control the depth of an audit.
type AuditOptions struct {
	// ReceiptsOnly checks only the signatures and links of the stored receipts.
	ReceiptsOnly bool
	// Progress receives the number of checked receipts. It may be called from several goroutines.
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
	// Further is a break among the findings, if something else broke first. It is reported
	// separately so that other tampering cannot hide it.
	Further *ledger.Break `json:"further_break,omitempty"`
	// RolledBack lists the chains that differ from what was acknowledged, except the one that Break
	// is about. They are listed separately so that other tampering cannot hide them.
	RolledBack []*ledger.Break `json:"chains_put_back,omitempty"`
}

// LedgerAudit is an audit with the state of the head when it started.
type LedgerAudit struct {
	*AuditReport
	HeadCount  int64  // number of receipts according to the stored head
	LastNumber string // number of the newest receipt, or "" if it does not verify on its own
}

// Values of AuditReport.Status.
const (
	AuditIntact = "intact"
	AuditBroken = "broken"
)

// Audit walks an organization's whole ledger: the signature, columns and links of every receipt,
// the head and, unless options say otherwise, every event of every chain. It returns an error only
// if it could not read. Tampering is in the report.
func (j *Judge) Audit(ctx context.Context, org *ledger.Organization, options AuditOptions) (*AuditReport, error) {
	a := j.newAudit(org)
	a.options = options
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
		// A break that was found is reported even if the rest cannot be read.
		lost, err := a.inspectFindings(ctx)
		switch {
		case err != nil && found == nil:
			return nil, err
		case err != nil:
			report.NotChecked = append(report.NotChecked, string(ledger.CheckFindings))
		case found == nil:
			found = lost
		default:
			report.Further = lost
		}
		back, err := a.rolledBackChains(ctx)
		if found == nil && len(back) > 0 {
			found, back = back[0], back[1:]
		}
		switch {
		case err != nil && found == nil:
			return nil, err
		case err != nil:
			report.NotChecked = append(report.NotChecked, string(ledger.CheckRollback))
		}
		report.RolledBack = back
	}
	if found != nil {
		report.Status, report.Break = AuditBroken, found
	}
	return report, nil
}

// AuditLedger is Audit for an organization's id. It also returns the state of the head.
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

// audit checks everything that is stored for one organization.
type audit struct {
	chainAudit
	judge    *Judge
	options  AuditOptions
	receipts atomic.Int64
	chains   atomic.Int64
	acts     atomic.Int64

	maxAnchors int   // number of the newest anchors to check; 0: all
	maxActs    int64 // acts to read; 0: all
	maxChains  int   // watched chains to check; 0: all
	maxCounted int   // newest events to recount budgets from; 0: all

	known   func(*Tampering) (bool, error) // which breaks are named last; nil for none
	failing []evidence.Failing             // failing rows; set by the first call of failingRow

	records      map[ledger.Record]string  // as in walkedActs; set by inspectActs
	recordsUntil ledger.LogEnd             // the log's end when it was walked
	imports      map[string]loggedImport   // imports of approvals by id
	votes        map[string][]ledger.KeyID // as in walkedActs
	anchors      []madeAnchor              // likewise
}

func (j *Judge) newAudit(org *ledger.Organization) *audit {
	return &audit{chainAudit: chainAudit{reader: j.reader, org: org}, judge: j}
}

// Number of receipts in a worker's segment: large enough to amortize opening a scan, small enough
// to bound memory and give every worker a share.
const (
	minSegment = 2048
	maxSegment = 16384
)

func segmentSize(receipts int64, workers int) int64 {
	return min(max(receipts/int64(4*workers), minSegment), maxSegment)
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
		head, err := a.store.Head(ctx, a.org.ID)
		if err != nil && !errors.Is(err, store.ErrNotFound) {
			return nil, err
		}
		if again, err := a.newest(ctx); err != nil {
			return nil, err
		} else if again > newest {
			continue // receipts were sealed in the meantime; walk them too
		}
		if found := walk.Finish(head, a.keys); found != nil {
			return found, nil
		}
		if found, err := a.inspectRollback(ctx); found != nil || err != nil || a.options.ReceiptsOnly {
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

// newest returns the sequence of the last receipt, or 0 if there is none. A receipt with an
// impossible sequence counts as 1, so that the walk from 1 finds it.
func (a *audit) newest(ctx context.Context) (int64, error) {
	receipts, err := a.store.Receipts(ctx, a.org.ID, 0, 1)
	if err != nil || len(receipts) == 0 {
		return 0, err
	}
	return max(receipts[0].Sequence, 1), nil
}

// segment is one worker's share and its result.
type segment struct {
	from, to int64
	walk     *ledger.Walk
	found    *ledger.Break
	err      error
	done     chan struct{}
}

// walkTo inspects the receipts after those already walked, in parallel. It joins the segments in
// order, so that the break it returns is the first one.
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
		from = math.MinInt64 // include receipts with a sequence below 1
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
		err = a.store.ScanBodies(ctx, a.org.ID, from, s.to, func(body []byte) error {
			in := ledger.InspectBytes(body, a.org.ID, a.keys, r)
			if in.Fault != "" {
				r.Sequence = s.walk.Checked + 1 // do not trust its claimed sequence; it takes the next one's place
			}
			return step(r, in)
		})
	} else {
		err = a.store.ScanReceipts(ctx, a.org.ID, from, s.to, func(r *ledger.StoredReceipt) error {
			in := ledger.Inspect(r, a.org.Slug, a.keys)
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
	// The events are read after the scan, so that no connection waits for another.
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
