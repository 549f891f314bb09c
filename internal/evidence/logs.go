package evidence

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"countersign/internal/fault"
	"countersign/internal/ledger"
	"countersign/internal/store"
)

// ErrRolledBack says that an organization's audit log or receipts are older than what was known
// before: the database was rolled back.
var ErrRolledBack = fault.Errorf(fault.CodeRolledBack, "the database is older than what this server has acknowledged, or this server has no record of it: nothing is decided, sealed or signed in this organization until an operator has investigated; see countersign doctor, or run countersign rollback accept if it was restored on purpose")

// errLog says that an audit log has no authenticated end or does not lead to it, so what it says
// about records cannot be trusted.
var errLog = fmt.Errorf("the audit log is incomplete or was changed: %w", ledger.ErrStateTampered)

// logs holds what this process knows about the audit logs in use.
type logs struct {
	mu     sync.Mutex
	memory map[ledger.OrgID]*logMemory
}

// logMemory is what this process knows about one audit log. A restored row is authentic, so only
// this memory reveals a rollback.
type logMemory struct {
	catching sync.Mutex // held while reading the acts of other writers; taken before mu

	mu sync.Mutex
	// known is the furthest end ever seen: committed here, read, or recorded outside the database.
	known ledger.LogEnd
	// outside is the last end that was recorded outside the database. It moves backwards only when
	// an operator accepts an older database.
	outside ledger.LogEnd
	// history is nil until it is needed. It leads to end, which is authentic.
	history *ledger.History
	end     *ledger.ActLog
	// behind reports that the stored log was found to be older than known.
	behind bool
	// fault is what is wrong with the log, or nil.
	fault error
}

// memoryOf returns what is known about a log. It starts with the end that was recorded outside the
// database.
func (s *Store) memoryOf(org ledger.OrgID) *logMemory {
	s.logs.mu.Lock()
	defer s.logs.mu.Unlock()
	m := s.logs.memory[org]
	if m == nil {
		m = &logMemory{outside: s.remembered(org)}
		m.known = m.outside
		s.logs.memory[org] = m
	}
	return m
}

func (s *Store) remembered(org ledger.OrgID) ledger.LogEnd {
	if s.Remembered == nil {
		return ledger.LogEnd{}
	}
	return s.Remembered(org)
}

// Follows reports whether this process uses an organization's log.
func (s *Store) Follows(org ledger.OrgID) bool {
	s.logs.mu.Lock()
	defer s.logs.mu.Unlock()
	return s.logs.memory[org] != nil
}

// KnownEnd returns the furthest end of a log that this process knows, or the zero value if it does
// not follow the log.
func (s *Store) KnownEnd(org ledger.OrgID) ledger.LogEnd {
	s.logs.mu.Lock()
	m := s.logs.memory[org]
	s.logs.mu.Unlock()
	if m == nil {
		return ledger.LogEnd{}
	}
	return m.knownEnd()
}

// CheckLog reads a log to its end. It returns ErrRolledBack if the log is older than it was known
// to be, and ledger.ErrStateTampered if it was changed.
func (s *Store) CheckLog(ctx context.Context, org ledger.OrgID) error {
	if s.keys == nil {
		return errNoKeys
	}
	s.refreshOutside(org, s.memoryOf(org))
	return s.catchUp(ctx, org)
}

// AcceptLog accepts a log as it is stored, whatever was known before. Only an operator's decision
// leads here.
func (s *Store) AcceptLog(org ledger.OrgID) {
	m := s.memoryOf(org)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.reset(s.remembered(org), ledger.LogEnd{})
}

// reset forgets the log and starts again from an accepted end. The caller holds m.mu.
func (m *logMemory) reset(outside, known ledger.LogEnd) {
	m.outside, m.known = outside, known
	m.history, m.end, m.behind, m.fault = nil, nil, false, nil
}

// refreshOutside picks up changes to what is recorded outside the database: an end that another
// process has acknowledged, or an older one that an operator has accepted.
func (s *Store) refreshOutside(org ledger.OrgID, m *logMemory) {
	now := s.remembered(org)
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case now == m.outside:
	case now.Count <= m.outside.Count: // a log that is known only grows
		m.reset(now, now)
	default:
		m.outside = now
		if m.known.Behind(now) {
			m.known = now
		}
	}
}

// knownEnd must be called before the database is read: acts that are appended meanwhile prove
// nothing.
func (m *logMemory) knownEnd() ledger.LogEnd {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.known
}

// maxCatchUp bounds how many acts are held in memory at once. If more are missing, the log is
// replayed from its beginning, one act at a time.
const maxCatchUp = 1000

// catchUp reads the end of a log and the acts that were appended since the last time.
func (s *Store) catchUp(ctx context.Context, org ledger.OrgID) error {
	m := s.memoryOf(org)
	m.catching.Lock()
	defer m.catching.Unlock()
	known := m.knownEnd()
	end, err := s.port.ActLog(ctx, org)
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return err
	}
	return s.follow(ctx, org, m, end, known)
}

// follow advances the memory to an end that was read, or nil if there is none. The caller holds
// m.catching and called knownEnd before reading.
func (s *Store) follow(ctx context.Context, org ledger.OrgID, m *logMemory, end *ledger.ActLog, known ledger.LogEnd) error {
	if end == nil && known.Count == 0 {
		return m.fail(errLog)
	}
	if end != nil && !m.isVerifiedEnd(end) && !end.Authentic(s.keys) {
		return m.fail(errLog)
	}
	if end == nil || end.End().Behind(known) {
		return s.confirmRollback(ctx, org, m, known)
	}
	history, err := s.historyTo(ctx, org, m, end, known)
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.adopt(history, end)
	return nil
}

// isVerifiedEnd reports whether an end is the one that was found authentic before.
func (m *logMemory) isVerifiedEnd(end *ledger.ActLog) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.sameEnd(end)
}

// sameEnd is isVerifiedEnd for callers that hold m.mu.
func (m *logMemory) sameEnd(end *ledger.ActLog) bool {
	return m.end != nil && (m.end == end || m.end.End() == end.End() && m.end.Controls == end.Controls && slices.Equal(m.end.MAC, end.MAC))
}

// fail records what is wrong with a log.
func (m *logMemory) fail(fault error) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.fault = fault
	return fault
}

// adopt installs a history that leads to an authentic end, unless the memory is already further.
// The caller holds m.mu.
func (m *logMemory) adopt(history *ledger.History, end *ledger.ActLog) {
	if m.end != nil && m.end.Count > end.Count || history == nil || history.End().Count < end.Count {
		return
	}
	m.history, m.end, m.fault, m.behind = history, end, nil, false
	if m.known.Count <= end.Count {
		m.known = end.End()
	}
}

// historyTo returns a history that leads to an authentic end or past it.
func (s *Store) historyTo(ctx context.Context, org ledger.OrgID, m *logMemory, end *ledger.ActLog, known ledger.LogEnd) (*ledger.History, error) {
	m.mu.Lock()
	history := m.history
	var at ledger.LogEnd // others may extend the history once the mutex is released
	if history != nil {
		at = history.End()
	}
	m.mu.Unlock()
	missing := end.Count - at.Count
	switch {
	case history == nil || missing > maxCatchUp || missing == 0 && at != end.End():
		return s.replay(ctx, org, m, end, known)
	case missing <= 0: // acts committed here while the end was read are compared next time
		return history, nil
	}
	acts, err := s.port.Acts(ctx, org, end.Count+1, int(missing)+1) // with the last that is known
	if err != nil {
		return nil, err
	}
	slices.Reverse(acts)
	if forks(acts, at) && at != known { // only the whole log shows whether it leads to the known end
		return s.replay(ctx, org, m, end, known)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if history != m.history || history.End() != at { // another goroutine was first
		return m.history, nil
	}
	if err := m.extend(acts, end, known); err != nil {
		return nil, err
	}
	return history, nil
}

// forks reports whether acts, which were read from a history's last act on, start with another one:
// the log was put back and continued, and may be longer than it was.
func forks(acts []*ledger.StoredAct, last ledger.LogEnd) bool {
	return len(acts) > 0 && acts[0].Sequence == last.Count && acts[0].Hash() != last.Last
}

// extend appends acts that were read to the history. They start with its last act. The caller holds
// m.mu.
func (m *logMemory) extend(acts []*ledger.StoredAct, end *ledger.ActLog, known ledger.LogEnd) error {
	for _, act := range acts {
		if act.Sequence == known.Count && act.Hash() != known.Last {
			m.behind = true
			return ErrRolledBack
		}
	}
	last := m.history.End()
	if forks(acts, last) {
		return ErrRolledBack // unless it was accepted, which catchUp finds out
	}
	if len(acts) > 0 && acts[0].Sequence == last.Count {
		acts = acts[1:]
	}
	if err := m.history.Extend(acts, end.End()); err != nil {
		m.fault = errors.Join(errLog, err)
		return m.fault
	}
	return nil
}

var errEnough = errors.New("enough was read")

// replay builds the history of a log from its beginning.
func (s *Store) replay(ctx context.Context, org ledger.OrgID, m *logMemory, end *ledger.ActLog, known ledger.LogEnd) (*ledger.History, error) {
	history, forked := ledger.NewHistory(), false
	var broken error
	err := s.port.ScanActs(ctx, org, func(act *ledger.StoredAct) error {
		if history.End().Count == end.Count {
			return errEnough
		}
		if broken = history.Step(act); broken != nil {
			return errEnough
		}
		forked = forked || act.Sequence == known.Count && history.End() != known
		return nil
	})
	switch {
	case err != nil && !errors.Is(err, errEnough):
		return nil, err
	case broken != nil:
		return nil, m.fail(errors.Join(errLog, broken))
	case history.End() != end.End():
		return nil, m.fail(errLog)
	case forked:
		m.mu.Lock()
		defer m.mu.Unlock()
		m.behind = true
		return nil, ErrRolledBack
	}
	return history, nil
}

// confirmRollback reads the end of a log once more, under its lock, before reporting that the log
// was rolled back.
func (s *Store) confirmRollback(ctx context.Context, org ledger.OrgID, m *logMemory, known ledger.LogEnd) error {
	var end *ledger.ActLog
	err := s.port.Transact(ctx, &store.Needs{Logs: []ledger.OrgID{org}}, func(loaded *store.Loaded) (*store.Changes, error) {
		end = loaded.Logs[org]
		return &store.Changes{}, nil
	})
	if err != nil {
		return err
	}
	if end != nil && !end.Authentic(s.keys) {
		return m.fail(errLog)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.known != known && m.known.Count <= known.Count { // an operator has accepted the log in the meantime
		return fmt.Errorf("the audit log was accepted while it was read: %w", store.ErrUnavailable)
	}
	if end != nil && !end.End().Behind(known) {
		return fmt.Errorf("the audit log was read too early: %w", store.ErrUnavailable)
	}
	m.behind = true
	return ErrRolledBack
}

// LogFault is what is wrong with one followed log.
type LogFault struct {
	Org ledger.OrgID
	Err error
}

// FollowLogs reads the ends of all logs in use in one statement, and then the acts that were
// appended since. This is how replicas learn of each other's acts. It returns the problems of
// individual logs, and an error if nothing could be read.
func (s *Store) FollowLogs(ctx context.Context) ([]LogFault, error) {
	if s.keys == nil {
		return nil, nil
	}
	s.logs.mu.Lock()
	known := make(map[ledger.OrgID]ledger.LogEnd, len(s.logs.memory))
	orgs := make([]ledger.OrgID, 0, len(s.logs.memory))
	memory := make(map[ledger.OrgID]*logMemory, len(s.logs.memory))
	for org, m := range s.logs.memory {
		orgs, memory[org] = append(orgs, org), m
	}
	s.logs.mu.Unlock()
	if len(orgs) == 0 {
		return nil, nil
	}
	for org, m := range memory {
		s.refreshOutside(org, m)
		known[org] = m.knownEnd()
	}
	ends, err := s.port.ActLogs(ctx, orgs)
	if err != nil {
		return nil, err
	}
	var failures []LogFault
	for _, org := range orgs {
		m, end := memory[org], ends[org]
		if end == nil && known[org].Count == 0 {
			continue // no such organization, or no act yet
		}
		m.mu.Lock()
		upToDate := end != nil && m.sameEnd(end) && m.known == m.end.End() && !m.behind && m.fault == nil
		m.mu.Unlock()
		if upToDate {
			continue
		}
		m.catching.Lock()
		err := s.follow(ctx, org, m, end, known[org])
		m.catching.Unlock()
		if err != nil {
			failures = append(failures, LogFault{org, err})
		}
	}
	return failures, nil
}

// prepare makes sure that the logs of the needed organizations were replayed, and returns their
// known ends before the transaction reads anything.
func (s *Store) prepare(ctx context.Context, needs *store.Needs) (map[ledger.OrgID]ledger.LogEnd, error) {
	known := make(map[ledger.OrgID]ledger.LogEnd, 1)
	for _, orgs := range [...][]ledger.OrgID{needs.Orgs, needs.Govern} {
		for _, org := range orgs {
			if _, done := known[org]; done {
				continue
			}
			m := s.memoryOf(org)
			m.mu.Lock()
			wanted := m.history == nil && !m.behind
			m.mu.Unlock()
			if wanted {
				err := s.catchUp(ctx, org)
				if err != nil && !errors.Is(err, ledger.ErrStateTampered) && !errors.Is(err, ErrRolledBack) {
					return nil, err
				}
			}
			known[org] = m.knownEnd()
		}
	}
	return known, nil
}

// verifyLogs checks the loaded organizations against their logs, and the logs against what was
// known about them. It names the failures in loaded.
func (s *Store) verifyLogs(loaded *store.Loaded, known map[ledger.OrgID]ledger.LogEnd) (suspects []ledger.OrgID, err error) {
	for id, org := range loaded.Orgs {
		switch err := s.verifyLog(loaded, org, known[id]); {
		case errors.Is(err, ErrRolledBack):
			loaded.Behind = append(loaded.Behind, id)
			suspects = append(suspects, id)
		case errors.Is(err, ledger.ErrStateTampered):
			loaded.Tampered = append(loaded.Tampered, id)
		case err != nil:
			return nil, err
		}
	}
	return suspects, nil
}

func (s *Store) verifyLog(loaded *store.Loaded, org *ledger.Organization, known ledger.LogEnd) error {
	m, end := s.memoryOf(org.ID), loaded.Ends[org.ID]
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case end == nil && known.Count > 0:
		return ErrRolledBack
	case end == nil:
		return errLog
	case !m.sameEnd(end) && !end.Authentic(s.keys):
		return errLog
	case end.End().Behind(known) || m.behind:
		return ErrRolledBack
	case m.history == nil:
		return errLog
	}
	if missing := end.Count - m.history.End().Count; missing > 0 {
		acts, err := loaded.ActsAfter(org.ID, m.history.End().Count-1, int(min(missing, 1<<20))+1)
		if err != nil {
			return err
		}
		if err := m.extend(acts, end, known); err != nil {
			return err
		}
	}
	if m.history.End().Count == end.Count {
		m.adopt(m.history, end)
	}
	return s.verifyOrganization(org, end)
}

var errOrganization = fmt.Errorf("organization fails its authenticator, or is not the version that the last act wrote: %w", ledger.ErrStateTampered)

// verifyOrganization requires the version of the organization that the last act wrote. A store
// returns the same record until it changes, or one for reads and one for transactions, so a
// verified pointer needs no second check.
func (s *Store) verifyOrganization(org *ledger.Organization, end *ledger.ActLog) error {
	if controls, ok := s.orgs.Get(org); ok && controls == end.Controls {
		return nil
	}
	controls, err := org.Hash()
	if err != nil || controls != end.Controls || !org.Authentic(s.keys) {
		return errOrganization
	}
	s.orgs.Put(org, controls, org.Size())
	return nil
}

// CurrentOrganization returns the version of an organization that the last act wrote.
func (s *Store) CurrentOrganization(ctx context.Context, id ledger.OrgID) (*ledger.Organization, error) {
	if s.keys == nil {
		return nil, errNoKeys
	}
	m := s.memoryOf(id)
	for {
		before := m.authentic()
		org, err := s.port.Organization(ctx, id)
		if err != nil {
			return nil, err
		}
		if end := m.authentic(); end != nil && s.verifyOrganization(org, end) == nil {
			return org, nil
		}
		// The organization may be newer than the known end, or have changed since it was read.
		if err := s.catchUp(ctx, id); err != nil {
			return nil, err
		}
		if end := m.authentic(); before != nil && end != nil && before.End() == end.End() {
			return nil, errOrganization
		}
	}
}

// authentic returns the end that the history leads to, or nil if it is unknown or older than the
// known end.
func (m *logMemory) authentic() *ledger.ActLog {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.behind || m.history == nil || m.end.Count < m.known.Count {
		return nil
	}
	return m.end
}

// committed advances the memory by what a transaction has appended.
func (s *Store) committed(changes *store.Changes) {
	for _, log := range changes.Logs {
		m, end := s.memoryOf(log.Org), *log
		acts := make([]*ledger.StoredAct, 0, 1)
		for _, act := range changes.NewActs {
			if act.Org == log.Org {
				acts = append(acts, act)
			}
		}
		m.mu.Lock()
		if m.known.Count < end.Count {
			m.known = end.End()
		}
		// If acts of another transaction come in between, they are read when they are needed.
		if m.history != nil && m.history.End().Count+int64(len(acts)) == end.Count && m.history.Extend(acts, end.End()) == nil {
			m.adopt(m.history, &end)
		}
		m.mu.Unlock()
	}
}
