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

// ErrRolledBack says that the audit log of an organization, or its receipts, are older
// than what was known before. Somebody has put the database back.
var ErrRolledBack = fault.Errorf(fault.CodeRolledBack, "the database is older than what this server has acknowledged, or this server remembers nothing of it: nothing is decided, sealed or signed in this organization until an operator has looked at it; see countersign doctor, and countersign rollback accept where it was put back on purpose")

// errLog says that an audit log does not lead to its authenticated end, or has none:
// what it says of records cannot be known.
var errLog = fmt.Errorf("the audit log is incomplete or was changed: %w", ledger.ErrStateTampered)

// logs are what this process knows of the audit logs in use.
type logs struct {
	mu     sync.Mutex
	memory map[ledger.OrgID]*logMemory
}

// logMemory is what this process knows of one audit log. A row that was put back is
// authentic; only such a memory tells.
type logMemory struct {
	catching sync.Mutex // held by the one who reads what others have entered

	mu sync.Mutex
	// known is the furthest end that was ever seen: committed here, read, or remembered
	// outside the database.
	known ledger.LogEnd
	// outside is what was last remembered outside the database. It goes back only when an
	// operator accepts an older database.
	outside ledger.LogEnd
	// history is nil until it is needed. It leads to end, which is authentic.
	history *ledger.History
	end     *ledger.ActLog
	// behind says that the stored log was found to be older than known.
	behind bool
	// fault is what is wrong with the log; nil where nothing is.
	fault error
}

// memoryOf is what is known of a log. Where nothing is yet, what was remembered outside
// the database is.
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

// Follows reports whether an organization's log is in use here.
func (s *Store) Follows(org ledger.OrgID) bool {
	s.logs.mu.Lock()
	defer s.logs.mu.Unlock()
	return s.logs.memory[org] != nil
}

// KnownEnd is the furthest end of a log that this process knows of, the zero value where
// it does not follow that log.
func (s *Store) KnownEnd(org ledger.OrgID) ledger.LogEnd {
	s.logs.mu.Lock()
	m := s.logs.memory[org]
	s.logs.mu.Unlock()
	if m == nil {
		return ledger.LogEnd{}
	}
	return m.knownEnd()
}

// CheckLog reads a log to its end. The error is ErrRolledBack where the log is older than
// it was known to be, and ledger.ErrStateTampered where it was changed.
func (s *Store) CheckLog(ctx context.Context, org ledger.OrgID) error {
	if s.keys == nil {
		return errNoKeys
	}
	s.lookOutside(org, s.memoryOf(org))
	return s.catchUp(ctx, org)
}

// AcceptLog takes a log as it is stored for the truth, whatever was known before: an
// operator has said so.
func (s *Store) AcceptLog(org ledger.OrgID) {
	m := s.memoryOf(org)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.forget(s.remembered(org), ledger.LogEnd{})
}

// forget begins anew from an end that was accepted. Callers hold the mutex.
func (m *logMemory) forget(outside, known ledger.LogEnd) {
	m.outside, m.known = outside, known
	m.history, m.end, m.behind, m.fault = nil, nil, false, nil
}

// lookOutside takes up what was remembered outside the database since: an end that
// another process has acknowledged, or an older one that an operator has accepted.
func (s *Store) lookOutside(org ledger.OrgID, m *logMemory) {
	now := s.remembered(org)
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case now == m.outside:
	case now.Count < m.outside.Count:
		m.forget(now, now)
	default:
		m.outside = now
		if m.known.Behind(now) {
			m.known = now
		}
	}
}

// knownEnd is taken before the database is read: what is entered meanwhile is no sign of
// anything.
func (m *logMemory) knownEnd() ledger.LogEnd {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.known
}

// mostCaughtUp is how many acts are held together; where more are missing the log is
// replayed from its beginning, which holds one at a time.
const mostCaughtUp = 1000

// catchUp reads how far a log has come, and what was entered since.
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

// follow goes on to an end that was read, nil where there is none. The caller holds
// m.catching, and took known before it read.
func (s *Store) follow(ctx context.Context, org ledger.OrgID, m *logMemory, end *ledger.ActLog, known ledger.LogEnd) error {
	if end == nil && known.Count == 0 {
		return m.fail(errLog)
	}
	if end != nil && !m.vouchedFor(end) && !end.Authentic(s.keys) {
		return m.fail(errLog)
	}
	if end == nil || end.End().Behind(known) {
		return s.suspect(ctx, org, m, known)
	}
	history, err := s.leading(ctx, org, m, end, known)
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.settle(history, end)
	return nil
}

// vouchedFor reports whether an end is the one that was found authentic before.
func (m *logMemory) vouchedFor(end *ledger.ActLog) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.sameEnd(end)
}

// sameEnd is vouchedFor. Callers hold the mutex.
func (m *logMemory) sameEnd(end *ledger.ActLog) bool {
	return m.end != nil && (m.end == end || m.end.End() == end.End() && m.end.Controls == end.Controls && slices.Equal(m.end.MAC, end.MAC))
}

// fail keeps what is wrong with a log.
func (m *logMemory) fail(fault error) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.fault = fault
	return fault
}

// settle takes over a history that leads to an authentic end, unless another one has come
// further. Callers hold the mutex.
func (m *logMemory) settle(history *ledger.History, end *ledger.ActLog) {
	if m.end != nil && m.end.Count > end.Count || history == nil || history.End().Count < end.Count {
		return
	}
	m.history, m.end, m.fault, m.behind = history, end, nil, false
	if m.known.Count <= end.Count {
		m.known = end.End()
	}
}

// leading is the history that leads to an authentic end, or past it.
func (s *Store) leading(ctx context.Context, org ledger.OrgID, m *logMemory, end *ledger.ActLog, known ledger.LogEnd) (*ledger.History, error) {
	m.mu.Lock()
	history := m.history
	var at ledger.LogEnd // where it leads to; others take it further once the mutex is free
	if history != nil {
		at = history.End()
	}
	m.mu.Unlock()
	missing := end.Count - at.Count
	switch {
	case history == nil || missing > mostCaughtUp || missing == 0 && at != end.End():
		return s.replay(ctx, org, m, end, known)
	case missing <= 0: // what was entered here while the end was read is compared the next time
		return history, nil
	}
	acts, err := s.port.Acts(ctx, org, end.Count+1, int(missing))
	if err != nil {
		return nil, err
	}
	slices.Reverse(acts)
	m.mu.Lock()
	defer m.mu.Unlock()
	if history != m.history || history.End() != at { // another came first
		return m.history, nil
	}
	if err := m.extend(acts, end, known); err != nil {
		return nil, err
	}
	return history, nil
}

// extend goes on with acts that were read. Callers hold the mutex.
func (m *logMemory) extend(acts []*ledger.StoredAct, end *ledger.ActLog, known ledger.LogEnd) error {
	for _, act := range acts {
		if act.Sequence == known.Count && act.Hash() != known.Last {
			m.behind = true
			return ErrRolledBack
		}
	}
	if err := m.history.Extend(acts, end.End()); err != nil {
		m.fault = errors.Join(errLog, err)
		return m.fault
	}
	return nil
}

var errEnough = errors.New("enough was read")

// replay makes the history of a log from its beginning.
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

// suspect reads the end of a log once more, under its lock, before it is said that the
// log was put back.
func (s *Store) suspect(ctx context.Context, org ledger.OrgID, m *logMemory, known ledger.LogEnd) error {
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
	if m.known != known && m.known.Count <= known.Count { // an operator has accepted it meanwhile
		return fmt.Errorf("the audit log was accepted while it was read: %w", store.ErrUnavailable)
	}
	if end != nil && !end.End().Behind(known) {
		return fmt.Errorf("the audit log was read too early: %w", store.ErrUnavailable)
	}
	m.behind = true
	return ErrRolledBack
}

// LogTrouble is what is wrong with a log that was followed.
type LogTrouble struct {
	Org ledger.OrgID
	Err error
}

// FollowLogs reads how far the logs in use have come, in one statement, and what was
// entered since. Replicas learn of each other's acts by it. It returns what is wrong with
// single logs, and an error where nothing could be read.
func (s *Store) FollowLogs(ctx context.Context) ([]LogTrouble, error) {
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
		s.lookOutside(org, m)
		known[org] = m.knownEnd()
	}
	ends, err := s.port.ActLogs(ctx, orgs)
	if err != nil {
		return nil, err
	}
	var troubles []LogTrouble
	for _, org := range orgs {
		m, end := memory[org], ends[org]
		if end == nil && known[org].Count == 0 {
			continue // of nobody, or not begun
		}
		m.mu.Lock()
		settled := end != nil && m.sameEnd(end) && m.known == m.end.End() && !m.behind && m.fault == nil
		m.mu.Unlock()
		if settled {
			continue
		}
		m.catching.Lock()
		err := s.follow(ctx, org, m, end, known[org])
		m.catching.Unlock()
		if err != nil {
			troubles = append(troubles, LogTrouble{org, err})
		}
	}
	return troubles, nil
}

// prepare makes sure that the logs of some organizations were replayed, and returns how
// far they were known to go before the transaction reads anything.
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

// holdLogs holds the organizations that were loaded against their logs, and the logs
// against what was known of them. What is wrong it names in Loaded.
func (s *Store) holdLogs(loaded *store.Loaded, known map[ledger.OrgID]ledger.LogEnd) (suspects []ledger.OrgID, err error) {
	for id, org := range loaded.Orgs {
		switch err := s.holdLog(loaded, org, known[id]); {
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

func (s *Store) holdLog(loaded *store.Loaded, org *ledger.Organization, known ledger.LogEnd) error {
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
		acts, err := loaded.ActsAfter(org.ID, m.history.End().Count, int(min(missing, 1<<20)))
		if err != nil {
			return err
		}
		if err := m.extend(acts, end, known); err != nil {
			return err
		}
	}
	if m.history.End().Count == end.Count {
		m.settle(m.history, end)
	}
	return s.holdOrganization(org, end)
}

// soundOrg is an organization that was found to be the one that a log's end left.
type soundOrg struct {
	org      *ledger.Organization
	controls [32]byte
}

var errOrganization = fmt.Errorf("organization fails its authenticator, or is not the one that the last act has left: %w", ledger.ErrStateTampered)

// holdOrganization wants the organization that the last act has left. A store lends out
// the same record until it has changed.
func (s *Store) holdOrganization(org *ledger.Organization, end *ledger.ActLog) error {
	if known, _ := s.orgs.Get(org.ID); known.org == org && known.controls == end.Controls {
		return nil
	}
	controls, err := org.Hash()
	if err != nil || controls != end.Controls || !org.Authentic(s.keys) {
		return errOrganization
	}
	s.orgs.Put(org.ID, soundOrg{org, end.Controls}, org.Size())
	return nil
}

// CurrentOrganization finds an organization that is the one that the last act has left.
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
		if end := m.authentic(); end != nil && s.holdOrganization(org, end) == nil {
			return org, nil
		}
		// It may be newer than what is known, or have changed since it was read.
		if err := s.catchUp(ctx, id); err != nil {
			return nil, err
		}
		if end := m.authentic(); before != nil && end != nil && before.End() == end.End() {
			return nil, errOrganization
		}
	}
}

// authentic is the end to which the history leads, nil where it is not known or is older
// than it should be.
func (m *logMemory) authentic() *ledger.ActLog {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.behind || m.history == nil || m.end.Count < m.known.Count {
		return nil
	}
	return m.end
}

// committed goes on with what a transaction has entered.
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
		// Where another transaction's acts come between, they are read when they are needed.
		if m.history != nil && m.history.End().Count+int64(len(acts)) == end.Count && m.history.Extend(acts, end.End()) == nil {
			m.settle(m.history, &end)
		}
		m.mu.Unlock()
	}
}
