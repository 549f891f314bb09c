package service

import (
	"context"
	"time"

	"github.com/google/uuid"

	"countersign/internal/ledger"
)

// logPoll is how often the ends of the audit logs in use are read, so that this process
// knows of what others have entered.
const logPoll = time.Second

// noteLogs remembers outside the database how far audit logs have come, before those who
// entered anything are answered. Where that fails the commit stands and the answer is
// given: a server writes the file again each second.
func (s *Service) noteLogs(logs []*ledger.ActLog) {
	if len(logs) == 0 {
		return
	}
	if err := s.judge.NoteLogs(logs); err != nil {
		s.log.Error("how far the audit log has come cannot be remembered outside the database: a database that is put back would not be noticed", "error", err)
	}
}

// changed passes on that something has changed. It must not block.
func (s *Service) changed(id uuid.UUID) {
	s.waiters.wake(id)
	if s.store.Follows(ledger.OrgID{UUID: id}) {
		nudge(s.moved)
	}
}

// followLogs keeps what is known of the audit logs current until ctx ends.
func (s *Service) followLogs(ctx context.Context) {
	ticker := time.NewTicker(logPoll)
	defer ticker.Stop()
	told := make(map[ledger.OrgID]string) // so that the log says it once
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		case <-s.moved:
		}
		troubles, err := s.store.FollowLogs(ctx)
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			s.log.Warn("the audit logs could not be followed: the next second tries again", "error", err)
			continue
		}
		now := make(map[ledger.OrgID]string, len(troubles))
		for _, trouble := range troubles {
			now[trouble.Org] = trouble.Err.Error()
			if told[trouble.Org] == now[trouble.Org] {
				continue
			}
			// The self-check keeps it as a finding.
			s.log.Error("an audit log is not the one that was known: run countersign doctor", "organization", trouble.Org.String(), "error", trouble.Err)
		}
		told = now
	}
}
