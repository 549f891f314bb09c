package service

import (
	"context"
	"errors"
	"sync"

	"countersign/internal/ledger"
)

// approvalPolls remembers when the clients of approvals last asked about them, so that a
// reviewer can see whether somebody still waits for the decision. It is information
// and nothing else: nothing is decided by it, so it needs no authenticator, and it
// is kept apart from the approvals.
//
// What is asked here is known here at once. Other replicas, and this one after a
// restart, know it from the store, where it is written every few seconds and never
// in the course of a request.
type approvalPolls struct {
	mu     sync.Mutex
	open   map[ledger.ApprovalID]int // long polls under way in this process
	recent map[ledger.ApprovalID]poll
}

type poll struct {
	at      ledger.Time
	written ledger.Time // what the store holds of it; 0: nothing
}

const (
	// stillWaiting is how long after its last poll a client counts as waiting: longer
	// than the pause between two polls together with the lag of another replica.
	stillWaiting = ledger.Time(60_000)
	// maxPolls bounds the memory. Polls beyond it are not remembered until those
	// before them are written and old.
	maxPolls = 10_000
)

// note remembers that a client has asked.
func (p *approvalPolls) note(id ledger.ApprovalID, now ledger.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.noteLocked(id, now)
}

// noteLocked is note for who holds mu.
func (p *approvalPolls) noteLocked(id ledger.ApprovalID, now ledger.Time) {
	if p.recent == nil {
		p.recent = make(map[ledger.ApprovalID]poll)
	}
	known, found := p.recent[id]
	if now > known.at && (found || len(p.recent) < maxPolls) {
		p.recent[id] = poll{at: now, written: known.written}
	}
}

// longPoll is a client's wait for one approval. It counts as asking from begin to
// end, and belongs to one goroutine.
type longPoll struct {
	polls *approvalPolls
	id    ledger.ApprovalID
	begun bool
}

// begin enters the wait, once.
func (l *longPoll) begin(now ledger.Time) {
	if l.begun {
		return
	}
	l.begun = true
	p := l.polls
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.open == nil {
		p.open = make(map[ledger.ApprovalID]int)
	}
	p.open[l.id]++
	p.noteLocked(l.id, now)
}

// end leaves the wait, if it was entered.
func (l *longPoll) end(now ledger.Time) {
	if !l.begun {
		return
	}
	p := l.polls
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.open[l.id]--; p.open[l.id] == 0 {
		delete(p.open, l.id)
	}
	p.noteLocked(l.id, now)
}

// last is when the client was last heard here; 0: never, or not lately.
func (p *approvalPolls) last(id ledger.ApprovalID, now ledger.Time) ledger.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.open[id] > 0 {
		return now
	}
	return p.recent[id].at
}

// unwritten are the polls that the store does not have yet, those under way
// included. What it has, and is old, is forgotten.
func (p *approvalPolls) unwritten(now ledger.Time) map[ledger.ApprovalID]ledger.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	for id := range p.open {
		p.noteLocked(id, now)
	}
	found := make(map[ledger.ApprovalID]ledger.Time)
	for id, poll := range p.recent {
		switch {
		case poll.at > poll.written:
			found[id] = poll.at
		case poll.at < now-stillWaiting:
			delete(p.recent, id)
		}
	}
	return found
}

func (p *approvalPolls) wrote(written map[ledger.ApprovalID]ledger.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for id, at := range written {
		if known, found := p.recent[id]; found {
			p.recent[id] = poll{at: known.at, written: at}
		}
	}
}

// FlushPolls writes down when clients last asked about their chains and approvals, for a
// server that ends.
func (s *Service) FlushPolls(ctx context.Context) error {
	return errors.Join(s.FlushChainPolls(ctx), s.FlushApprovalPolls(ctx))
}

// FlushApprovalPolls writes down when clients last asked about their approvals. The worker
// calls it every few seconds, one call at a time.
func (s *Service) FlushApprovalPolls(ctx context.Context) error {
	unwritten := s.approvalPolls.unwritten(s.now())
	if len(unwritten) == 0 {
		return nil
	}
	if err := s.store.PutPolls(ctx, unwritten); err != nil {
		return visible(err)
	}
	s.approvalPolls.wrote(unwritten)
	return nil
}

// asksFor reports whether a caller is the client of an approval: it holds the key
// that opened the chain. A browser's session is a person, whoever's key it is.
func (c *Caller) asksFor(view *ApprovalView) bool {
	return c.secret != nil && c.Key == view.OpenedBy
}

// Attendance is whether a client waits for an approval, as far as its requests tell.
// A client that is gone may come back: a wait can be taken up again.
type Attendance struct {
	// LastPolledAt is when the client last asked about the approval, within some
	// seconds; nil: never.
	LastPolledAt *ledger.Time
	// Waiting says that the approval is open and that the client has asked within the
	// last minute.
	Waiting bool
}

// attend adds to approvals whether their clients wait, for callers who
// review.
func (s *Service) attend(ctx context.Context, caller *Caller, views ...*ApprovalView) error {
	if !caller.Role.Includes(ledger.RoleMember) || len(views) == 0 {
		return nil
	}
	asked := make([]ledger.ApprovalID, len(views))
	for i, view := range views {
		asked[i] = view.ID
	}
	stored, err := s.store.Polls(ctx, asked)
	if err != nil {
		return visible(err)
	}
	now := s.now()
	for _, view := range views {
		// Another replica's clock may run ahead of this one's.
		last := min(ledger.Later(stored[view.ID], s.approvalPolls.last(view.ID, now)), now)
		view.Client = new(Attendance)
		if last > 0 {
			view.Client.LastPolledAt = &last
			view.Client.Waiting = view.Status.Open() && now-last < stillWaiting
		}
	}
	return nil
}
