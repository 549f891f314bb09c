package evidence

import (
	"context"
	"errors"

	"github.com/google/uuid"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

func encodeTransparencyLog(l *store.TransparencyLog) []byte {
	r := make(record, 0, 128)
	r.bytes(l.ID[:])
	r.bytes(l.Org.UUID[:])
	r.text(l.Origin)
	r.time(l.OpenedAt)
	r.timeOrNone(l.ClosedAt)
	return r
}

func (s *Store) sealTransparencyLog(l *store.TransparencyLog) {
	l.MAC = s.seal(l.Org, ledger.PurposeTransparency, encodeTransparencyLog(l))
}

func (s *Store) checkTransparencyLog(l *store.TransparencyLog) error {
	return s.check("a transparency log", l.Org, ledger.PurposeTransparency, l.MAC, encodeTransparencyLog(l))
}

// TransparencyLog implements store.Transparency.
func (s *Store) TransparencyLog(ctx context.Context, id uuid.UUID) (*store.TransparencyLog, error) {
	log, err := s.port.TransparencyLog(ctx, id)
	if err == nil {
		err = s.checkTransparencyLog(log)
	}
	if err != nil {
		return nil, err
	}
	return log, nil
}

// TransparencyLogs implements store.Transparency. A row that fails is reduced to its id and marked
// as tampered.
func (s *Store) TransparencyLogs(ctx context.Context, org ledger.OrgID) ([]*store.TransparencyLog, error) {
	logs, err := s.port.TransparencyLogs(ctx, org)
	if err != nil {
		return nil, err
	}
	for i, log := range logs {
		if err := s.checkTransparencyLog(log); errors.Is(err, ledger.ErrStateTampered) {
			logs[i] = &store.TransparencyLog{ID: log.ID, Org: org, Tampered: true}
		} else if err != nil {
			return nil, err
		}
	}
	return logs, nil
}

// OpenTransparencyLog implements store.Transparency.
func (s *Store) OpenTransparencyLog(ctx context.Context, log *store.TransparencyLog) error {
	if s.keys == nil {
		return errNoKeys
	}
	s.sealTransparencyLog(log)
	return s.port.OpenTransparencyLog(ctx, log)
}
