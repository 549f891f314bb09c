package verify

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

// Limits of one part of a self-check. They keep it from delaying other work, while every receipt of
// a large ledger is eventually checked.
const (
	checkSlice   = 100    // receipts read at a time
	maxChecked   = 10_000 // receipts in one part
	checkTimeout = 20 * time.Second
	maxReported  = 3       // new breaks of the walk over receipts that a round reports, and breaks that it repeats
	maxActs      = 500_000 // acts of an audit log; each anchor is one
	maxAnchors   = 10_000  // anchors compared with the log
	maxReceipts  = 1 << 52 // last sequence to look for without an authentic head
	maxCounted   = 200_000 // events to recount budgets from
	maxOpen      = 20_000  // open chains compared with the watch; Chains.ProveDue covers the rest in turns
)

// CheckProgress is the progress of a round of self-checks.
type CheckProgress struct {
	From     int64 // the first receipt to read; its link to the previous one was checked
	Checked  int64 // the last receipt whose chain was checked
	Notified int64 // breaks reported for the first time in this round
	Reminded int64 // breaks reported again
}

// Reporter stores findings and notifies an organization of them.
type Reporter interface {
	// Save stores a finding and reports whether it is open: nobody has acknowledged it.
	Save(ctx context.Context, org ledger.OrgID, t *Tampering) (open bool, err error)
	// DueNotice returns the name under which to report a finding, or "" if it was reported recently.
	// again says whether it was ever reported before.
	DueNotice(ctx context.Context, org ledger.OrgID, t *Tampering) (name string, again bool, err error)
	// Notify reports a finding under a name returned by DueNotice.
	Notify(ctx context.Context, org ledger.OrgID, t *Tampering, name string) error
}

// CheckNext checks the next part of a ledger and reports what is broken. It returns where the next
// part starts and whether this one reached the end.
func (j *Judge) CheckNext(ctx context.Context, org *ledger.Organization, place CheckProgress, report Reporter) (CheckProgress, bool, error) {
	a := j.newAudit(org)
	a.maxAnchors, a.maxActs, a.maxChains, a.maxCounted = maxAnchors, maxActs, maxOpen, maxCounted
	a.known = func(t *Tampering) (bool, error) { return j.Findings.acknowledged(ctx, org.ID, t) }
	c := &check{audit: a, CheckProgress: place, report: report}
	done, err := c.run(ctx)
	return c.CheckProgress, done, err
}

// check is one part of a self-check.
type check struct {
	*audit
	CheckProgress
	start   CheckProgress // place at the start of this part
	until   ledger.Time
	counted int64 // receipts according to the head
	report  Reporter
}

// run advances through the ledger and reports whether it reached the end. If a read fails after
// some progress, the progress is kept.
func (c *check) run(ctx context.Context) (done bool, err error) {
	head, err := c.store.Head(ctx, c.org.ID)
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return false, err
	}
	if head != nil {
		c.counted = head.Count
	}
	c.start, c.until = c.CheckProgress, c.now().Add(checkTimeout)
	if c.start == (CheckProgress{From: 1}) {
		// This comes first, because storing a finding of this round may restore a deleted row.
		if err := c.inspectEach(ctx, c.inspectFindings); err != nil {
			return false, err
		}
	}
	for first := true; first || c.From-c.start.From < maxChecked && !c.expired(); first = false {
		done, err := c.slice(ctx)
		switch {
		case err != nil && c.CheckProgress != c.start:
			return false, nil
		case err != nil || done:
			return err == nil, err
		}
	}
	return false, nil
}

func (c *check) expired() bool { return c.now() >= c.until }

// slice inspects some receipts and advances by at least one. The last of them is the first of the
// next slice, so that every link is checked.
func (c *check) slice(ctx context.Context) (done bool, err error) {
	newest, _, err := c.last(ctx)
	if err != nil {
		return false, err
	}
	if c.From > max(newest, 1) { // the break at the end was reported already
		return true, c.inspectAll(ctx, c.beyondLast, c.inspectRollback, c.boundedLog)
	}
	linked, err := c.links(ctx, newest)
	if err != nil {
		return false, err
	}
	all, found, err := c.chains(ctx, linked.seen)
	switch {
	case err != nil:
		return false, err
	case found != nil: // the link after its receipt is still to be checked
		return false, c.skipPast(ctx, found, found.Sequence, found.Sequence)
	case !all:
		return false, nil
	case linked.found != nil:
		return false, c.skipPast(ctx, linked.found, max(linked.found.Sequence+1, linked.next), c.Checked)
	}
	c.From = max(linked.walk.Checked, 1)
	if linked.walk.Checked < newest {
		return false, nil
	}
	return c.finish(ctx, linked.walk)
}

// last returns the sequence of the last receipt to check, or 0 if there is none. The rows' own
// sequences are not trusted: if the head is authentic, any receipt beyond its count was not written
// by the service and is itself a break. Receipts are read before the head, so that one that is
// sealed in between is counted.
func (c *check) last(ctx context.Context) (last int64, behind *ledger.Break, err error) {
	newest, err := c.newest(ctx)
	if err != nil {
		return 0, nil, err
	}
	head, err := c.store.Head(ctx, c.org.ID)
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return 0, nil, err
	}
	last = maxReceipts
	if head != nil && head.Authentic(c.keys) {
		last = max(head.Count, 1) // the walk finds receipts at 1 and below
	}
	if newest > last {
		behind = &ledger.Break{Sequence: newest, Check: ledger.CheckHead, Detail: fmt.Sprintf("a receipt is stored as number %d, behind the last that was sealed", newest)}
	}
	return min(newest, last), behind, nil
}

// beyondLast requires that no receipt comes after the last one.
func (c *check) beyondLast(ctx context.Context) (*ledger.Break, error) {
	_, behind, err := c.last(ctx)
	return behind, err
}

// skipPast reports a break and continues behind it, so that the whole ledger is checked however
// many breaks there are. To avoid a flood, a round reports only a few new breaks and repeats a few
// old ones. Later rounds report the others.
func (c *check) skipPast(ctx context.Context, found *ledger.Break, from, checked int64) error {
	t, err := c.judge.Findings.FromBreak(ctx, c.org.ID, found, c.counted)
	if err != nil {
		return err
	}
	open, err := c.report.Save(ctx, c.org.ID, t)
	if err != nil {
		return err
	}
	if open {
		if err := c.reportLimited(ctx, t); err != nil {
			return err
		}
	}
	c.From, c.Checked = from, checked
	return nil
}

// reportLimited reports a finding unless this round has reported enough.
func (c *check) reportLimited(ctx context.Context, t *Tampering) error {
	name, again, err := c.report.DueNotice(ctx, c.org.ID, t)
	if err != nil || name == "" {
		return err
	}
	count := &c.Notified
	if again {
		count = &c.Reminded
	}
	if *count >= maxReported {
		return nil
	}
	if err := c.report.Notify(ctx, c.org.ID, t, name); err != nil {
		return err
	}
	*count++
	return nil
}

// linkage is the result of checking receipts on their own and with their neighbours.
type linkage struct {
	walk  *ledger.Walk
	seen  []sealedChain // chains of the receipts before the break
	found *ledger.Break
	next  int64 // the first receipt stored after a gap
}

// links inspects the next receipts without their chains.
func (c *check) links(ctx context.Context, newest int64) (*linkage, error) {
	l := &linkage{walk: ledger.NewWalkFrom(c.From)}
	from, to := c.From, min(c.From+checkSlice, newest)
	if from == 1 {
		from = math.MinInt64 // include receipts with a sequence below 1
	}
	err := c.store.ScanReceipts(ctx, c.org.ID, from, to, func(r *ledger.StoredReceipt) error {
		in := ledger.Inspect(r, c.org.Slug, c.keys)
		if l.found = l.walk.Step(r, &in); l.found != nil {
			l.next = r.Sequence
			return errBroken
		}
		l.seen = append(l.seen, sealedChain{r.ID, r.Chain, in.Attested.Clone(), r.Sequence, l.walk.Label(r.Sequence), in.Hash})
		return nil
	})
	if err != nil && !errors.Is(err, errBroken) {
		return nil, err
	}
	if c.From == 1 {
		l.found = ledger.NewWalk().Join(l.walk, l.found) // nothing comes before the first
		if l.found != nil && l.found.Sequence == 1 {
			l.seen = nil
		}
	}
	if l.found == nil && l.walk.Checked < to {
		l.found = l.walk.Join(ledger.NewWalkFrom(to+1), nil) // the last receipts are missing
		l.next, err = c.firstStored(ctx, to+1, newest)
		return l, err
	}
	return l, nil
}

// firstStored returns the first stored receipt at or after from, or newest+1 if there is none.
func (c *check) firstStored(ctx context.Context, from, newest int64) (int64, error) {
	first := newest + 1
	err := c.store.ScanReceipts(ctx, c.org.ID, from, newest, func(r *ledger.StoredReceipt) error {
		first = r.Sequence
		return errBroken
	})
	if errors.Is(err, errBroken) {
		err = nil
	}
	return first, err
}

// chains checks the chains, events and approvals of receipts with valid links, until there is
// something to report or the time is up. It advances after each.
func (c *check) chains(ctx context.Context, seen []sealedChain) (all bool, found *ledger.Break, err error) {
	for i := range seen {
		if seen[i].sequence <= c.Checked {
			continue
		}
		if found, err := c.inspectTimed(ctx, &seen[i]); found != nil || err != nil {
			return false, found, err
		}
		c.From, c.Checked = seen[i].sequence, seen[i].sequence
		if c.expired() {
			return false, nil, nil
		}
	}
	return true, nil, nil
}

// inspectTimed checks one chain. If the time runs out, the next part starts with this chain and has
// all of its time for it. If that is not enough either, the chain is skipped, so that the round can
// end.
func (c *check) inspectTimed(ctx context.Context, sealed *sealedChain) (*ledger.Break, error) {
	left := c.until.Add(checkTimeout).Sub(c.now())
	timed, cancel := context.WithTimeout(ctx, left)
	defer cancel()
	found, err := c.inspectSealed(timed, sealed)
	if err == nil || timed.Err() == nil || ctx.Err() != nil || c.CheckProgress != c.start {
		return found, err
	}
	c.log.Warn("a chain takes too long to check and was passed by: run countersign audit", "chain", sealed.chain.String())
	return nil, nil
}

// finish checks the end of the ledger against its head and everything that belongs to the ledger as
// a whole. If receipts were sealed in the meantime, they come first.
func (c *check) finish(ctx context.Context, walk *ledger.Walk) (done bool, err error) {
	head, err := c.store.Head(ctx, c.org.ID)
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return false, err
	}
	if newest, _, err := c.last(ctx); err != nil || newest > walk.Checked {
		return false, err
	}
	end := func(context.Context) (*ledger.Break, error) { return walk.Finish(head, c.keys), nil }
	return true, c.inspectAll(ctx, end, c.beyondLast, c.inspectRollback, c.boundedLog)
}

// inspectAll reports what the inspections find, then failing rows, then chains that were rolled
// back.
func (c *check) inspectAll(ctx context.Context, inspections ...func(context.Context) (*ledger.Break, error)) error {
	// The log is walked first, because it says which rows must exist.
	if err := c.inspectEach(ctx, append(inspections, c.rows()...)...); err != nil {
		return err
	}
	back, err := c.rolledBackChains(ctx) // reported even if others cannot be read
	for _, found := range back {
		if reportErr := c.reportFinding(ctx, found); reportErr != nil {
			return reportErr
		}
	}
	return err
}

// inspectEach reports what the inspections find.
func (c *check) inspectEach(ctx context.Context, inspections ...func(context.Context) (*ledger.Break, error)) error {
	for _, inspect := range inspections {
		found, err := inspect(ctx)
		if err == nil && found != nil {
			err = c.reportFinding(ctx, found)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// boundedLog walks the audit log unless its end is not authentic, which is itself a break.
func (c *check) boundedLog(ctx context.Context) (*ledger.Break, error) {
	log, err := c.actLog(ctx)
	switch {
	case err != nil:
		return nil, err
	case log != nil && !log.Authentic(c.keys):
		return &ledger.Break{Check: ledger.CheckAuditLog, Detail: "the audit log's end fails its authenticator"}, nil
	}
	return c.inspectActs(ctx)
}

func (c *check) reportFinding(ctx context.Context, found *ledger.Break) error {
	t, err := c.judge.Findings.FromBreak(ctx, c.org.ID, found, c.counted)
	if err != nil {
		return err
	}
	open, err := c.report.Save(ctx, c.org.ID, t)
	if err != nil || !open {
		return err
	}
	name, _, err := c.report.DueNotice(ctx, c.org.ID, t)
	if err != nil || name == "" {
		return err
	}
	return c.report.Notify(ctx, c.org.ID, t, name)
}
