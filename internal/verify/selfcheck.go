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

// A look takes so much at a time that it keeps nobody waiting, and comes to every
// receipt of a large ledger in the end.
const (
	checkSlice   = 100    // receipts that are read together
	mostChecked  = 10_000 // receipts in one look
	longestCheck = ledger.Time(20_000)
	mostTold     = 3       // breaks that a round tells of, and of which it reminds
	mostActs     = 500_000 // of an audit log that is walked; each anchor is one
	mostAnchors  = 10_000  // that are held against the log
	mostReceipts = 1 << 52 // that are looked for where no authentic head counts them
	mostCounted  = 200_000 // events that budgets are counted anew from
	mostOpen     = 20_000  // open chains that are held against what is remembered; all take turns at ProveChains
)

// CheckPlace is where a round of looks at a ledger stands.
type CheckPlace struct {
	From     int64 // the first receipt to read; its link to the one before was looked at
	Looked   int64 // the last receipt whose chain was looked at
	Told     int64 // breaks that were told in this round for the first time
	Reminded int64 // breaks that were told again
}

// Reporter tells an organization of what a look has found.
type Reporter interface {
	// Keep keeps a finding, and reports whether it is to be told: nobody has
	// acknowledged it.
	Keep(ctx context.Context, org ledger.OrgID, t *Tampering) (open bool, err error)
	// Untold is the name under which a finding is to be told, "" when it was told
	// lately; again, when it was told before at all.
	Untold(ctx context.Context, org ledger.OrgID, t *Tampering) (name string, again bool, err error)
	// Tell tells a finding under a name that Untold gave.
	Tell(ctx context.Context, org ledger.OrgID, t *Tampering, name string) error
}

// LookOver looks over the next part of a ledger and reports what is broken there. It
// returns where the next look goes on, and whether this one came to the end.
func (j *Judge) LookOver(ctx context.Context, org *ledger.Organization, place CheckPlace, report Reporter) (CheckPlace, bool, error) {
	c := &check{audit: &audit{judge: j, org: org, mostAnchors: mostAnchors, mostActs: mostActs, mostChains: mostOpen, mostCounted: mostCounted}, CheckPlace: place, report: report}
	done, err := c.run(ctx)
	return c.CheckPlace, done, err
}

// check is one look under way.
type check struct {
	*audit
	CheckPlace
	begun   CheckPlace
	until   ledger.Time
	counted int64 // receipts, by the head
	report  Reporter
}

// run moves on through the ledger and reports whether it came to the end. What is
// done when something cannot be read is not done again.
func (c *check) run(ctx context.Context) (done bool, err error) {
	head, err := c.judge.store.Head(ctx, c.org.ID)
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return false, err
	}
	if head != nil {
		c.counted = head.Count
	}
	c.begun, c.until = c.CheckPlace, c.judge.now()+longestCheck
	if c.begun == (CheckPlace{From: 1}) {
		// Before the round finds anything: to keep that may put back a row that is gone.
		if err := c.look(ctx, c.shortFindings); err != nil {
			return false, err
		}
	}
	for first := true; first || c.From-c.begun.From < mostChecked && !c.late(); first = false {
		done, err := c.slice(ctx)
		switch {
		case err != nil && c.CheckPlace != c.begun:
			return false, nil
		case err != nil || done:
			return err == nil, err
		}
	}
	return false, nil
}

func (c *check) late() bool { return c.judge.now() >= c.until }

// slice inspects some receipts. The last of them is the first of the next slice,
// so that no link goes unseen. It gets at least one receipt further.
func (c *check) slice(ctx context.Context) (done bool, err error) {
	newest, _, err := c.last(ctx)
	if err != nil {
		return false, err
	}
	if c.From > max(newest, 1) { // the end is known to be broken
		return true, c.lookAll(ctx, c.behindLast, c.inspectPast, c.shortLog)
	}
	linked, err := c.links(ctx, newest)
	if err != nil {
		return false, err
	}
	all, found, err := c.chains(ctx, linked.seen)
	switch {
	case err != nil:
		return false, err
	case found != nil: // the link behind its receipt is still to be seen
		return false, c.stepOver(ctx, found, found.Sequence, found.Sequence)
	case !all:
		return false, nil
	case linked.found != nil:
		return false, c.stepOver(ctx, linked.found, max(linked.found.Sequence+1, linked.next), c.Looked)
	}
	c.From = max(linked.walk.Checked, 1)
	if linked.walk.Checked < newest {
		return false, nil
	}
	return c.finish(ctx, linked.walk)
}

// last is the last receipt to look at, 0 when there is none. What a receipt's row says of
// its place is not believed: where the head is authentic, nothing behind those that it
// counts is one that the service wrote, and it is a break by itself. Receipts are read
// before the head, so that one that is sealed meanwhile is counted.
func (c *check) last(ctx context.Context) (last int64, behind *ledger.Break, err error) {
	newest, err := c.newest(ctx)
	if err != nil {
		return 0, nil, err
	}
	head, err := c.judge.store.Head(ctx, c.org.ID)
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return 0, nil, err
	}
	last = mostReceipts
	if head != nil && head.Authentic(c.judge.keys) {
		last = max(head.Count, 1) // what stands in the first place or before it is walked upon
	}
	if newest > last {
		behind = &ledger.Break{Sequence: newest, Check: ledger.CheckHead, Detail: fmt.Sprintf("a receipt is stored as number %d, behind the last that was sealed", newest)}
	}
	return min(newest, last), behind, nil
}

// behindLast wants no receipt behind the last.
func (c *check) behindLast(ctx context.Context) (*ledger.Break, error) {
	_, behind, err := c.last(ctx)
	return behind, err
}

// stepOver goes on behind a break. However many there are, all of the ledger is
// looked at; so that they flood nobody, a round tells of a few that are new and
// reminds of a few that are not, and the others' turn comes with later rounds.
func (c *check) stepOver(ctx context.Context, found *ledger.Break, from, looked int64) error {
	t, err := c.judge.Broken(ctx, c.org.ID, found, c.counted)
	if err != nil {
		return err
	}
	open, err := c.report.Keep(ctx, c.org.ID, t)
	if err != nil {
		return err
	}
	if open {
		if err := c.tellFew(ctx, t); err != nil {
			return err
		}
	}
	c.From, c.Looked = from, looked
	return nil
}

// tellFew tells of a finding unless this round has told of enough.
func (c *check) tellFew(ctx context.Context, t *Tampering) error {
	name, again, err := c.report.Untold(ctx, c.org.ID, t)
	if err != nil || name == "" {
		return err
	}
	count := &c.Told
	if again {
		count = &c.Reminded
	}
	if *count >= mostTold {
		return nil
	}
	if err := c.report.Tell(ctx, c.org.ID, t, name); err != nil {
		return err
	}
	*count++
	return nil
}

// linkage is what receipts show by themselves and beside their neighbours.
type linkage struct {
	walk  *ledger.Walk
	seen  []sealedChain // of the receipts before the break
	found *ledger.Break
	next  int64 // the first receipt that is stored behind a gap
}

// links inspects the next receipts without their chains.
func (c *check) links(ctx context.Context, newest int64) (*linkage, error) {
	l := &linkage{walk: ledger.NewWalkFrom(c.From)}
	from, to := c.From, min(c.From+checkSlice, newest)
	if from == 1 {
		from = math.MinInt64 // what stands before the first shows as well
	}
	err := c.judge.store.ScanReceipts(ctx, c.org.ID, from, to, func(r *ledger.StoredReceipt) error {
		in := ledger.Inspect(r, c.org.Slug, c.judge.keys)
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
		l.found = l.walk.Join(ledger.NewWalkFrom(to+1), nil) // the last of them are missing
		l.next, err = c.firstStored(ctx, to+1, newest)
		return l, err
	}
	return l, nil
}

// firstStored is the first receipt that is there from one on; newest+1 where none is.
func (c *check) firstStored(ctx context.Context, from, newest int64) (int64, error) {
	first := newest + 1
	err := c.judge.store.ScanReceipts(ctx, c.org.ID, from, newest, func(r *ledger.StoredReceipt) error {
		first = r.Sequence
		return errBroken
	})
	if errors.Is(err, errBroken) {
		err = nil
	}
	return first, err
}

// chains looks at the chains, events and approvals of receipts whose links hold,
// until there is something to tell or the time is up. It moves on with each.
func (c *check) chains(ctx context.Context, seen []sealedChain) (all bool, found *ledger.Break, err error) {
	for i := range seen {
		if seen[i].sequence <= c.Looked {
			continue
		}
		if found, err := c.inTime(ctx, &seen[i]); found != nil || err != nil {
			return false, found, err
		}
		c.From, c.Looked = seen[i].sequence, seen[i].sequence
		if c.late() {
			return false, nil, nil
		}
	}
	return true, nil, nil
}

// inTime looks at one chain. One that is not done when the job must end is the first
// of the next job, with all of its time; when that is not enough either, it is
// passed by, so that the round comes to its end.
func (c *check) inTime(ctx context.Context, sealed *sealedChain) (*ledger.Break, error) {
	left := time.Duration(c.until+longestCheck-c.judge.now()) * time.Millisecond
	timed, cancel := context.WithTimeout(ctx, left)
	defer cancel()
	found, err := c.inspectSealed(timed, sealed)
	if err == nil || timed.Err() == nil || ctx.Err() != nil || c.CheckPlace != c.begun {
		return found, err
	}
	c.judge.log.Warn("a chain takes too long to be looked over, and was passed by: run countersign audit", "chain", sealed.chain.String())
	return nil, nil
}

// finish holds the end of the ledger against its head, and looks at what belongs to
// it as a whole. Where receipts were sealed meanwhile it is on to them first.
func (c *check) finish(ctx context.Context, walk *ledger.Walk) (done bool, err error) {
	head, err := c.judge.store.Head(ctx, c.org.ID)
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return false, err
	}
	if newest, _, err := c.last(ctx); err != nil || newest > walk.Checked {
		return false, err
	}
	end := func(context.Context) (*ledger.Break, error) { return walk.Finish(head, c.judge.keys), nil }
	return true, c.lookAll(ctx, end, c.behindLast, c.inspectPast, c.shortLog)
}

// lookAll tells of whatever any of the inspections finds, of rows that fail and of chains
// that were put back.
func (c *check) lookAll(ctx context.Context, inspections ...func(context.Context) (*ledger.Break, error)) error {
	// The log is walked first: it says which rows there must be.
	if err := c.look(ctx, append(inspections, c.rows()...)...); err != nil {
		return err
	}
	back, err := c.putBackChains(ctx)
	for _, found := range back {
		if err == nil {
			err = c.tell(ctx, found)
		}
	}
	return err
}

// look tells of whatever any of the inspections finds.
func (c *check) look(ctx context.Context, inspections ...func(context.Context) (*ledger.Break, error)) error {
	for _, inspect := range inspections {
		found, err := inspect(ctx)
		if err == nil && found != nil {
			err = c.tell(ctx, found)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// shortLog walks the audit log unless it is so long that nobody knows when it ends. How
// long it is, its authentic end says; one that is not is a break by itself.
func (c *check) shortLog(ctx context.Context) (*ledger.Break, error) {
	log, err := c.actLog(ctx)
	switch {
	case err != nil:
		return nil, err
	case log != nil && !log.Authentic(c.judge.keys):
		return &ledger.Break{Check: ledger.CheckAuditLog, Detail: "the audit log's end fails its authenticator"}, nil
	case log != nil && log.Count > mostActs:
		return nil, nil
	}
	return c.inspectActs(ctx)
}

// shortFindings is inspectFindings for a log that is not known to be too long. Where its
// end is not authentic, the acts that can be walked in time are.
func (c *check) shortFindings(ctx context.Context) (*ledger.Break, error) {
	log, err := c.actLog(ctx)
	if err != nil || log != nil && log.Count > mostActs && log.Authentic(c.judge.keys) {
		return nil, err
	}
	return c.inspectFindings(ctx)
}

func (c *check) tell(ctx context.Context, found *ledger.Break) error {
	t, err := c.judge.Broken(ctx, c.org.ID, found, c.counted)
	if err != nil {
		return err
	}
	open, err := c.report.Keep(ctx, c.org.ID, t)
	if err != nil || !open {
		return err
	}
	name, _, err := c.report.Untold(ctx, c.org.ID, t)
	if err != nil || name == "" {
		return err
	}
	return c.report.Tell(ctx, c.org.ID, t, name)
}
