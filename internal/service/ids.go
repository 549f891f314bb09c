package service

import (
	"encoding/binary"
	"sync"

	"github.com/google/uuid"

	"countersign/internal/ledger"
)

// idSeries keeps the ids of one process in the order they were made in, within a
// millisecond too: lists are in order of ids, and the newest must come first.
type idSeries struct {
	mu    sync.Mutex
	at    ledger.Time
	count uint16 // within the millisecond, of 12 bits
}

func (s *idSeries) next(now ledger.Time) (at ledger.Time, count uint16) {
	const most = 1<<12 - 1
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case now > s.at:
		s.at, s.count = now, 0
	case s.count == most:
		s.at, s.count = s.at+1, 0
	default:
		s.count++
	}
	return s.at, s.count
}

// timedID makes an id that sorts after all that this process made before.
func (s *Service) timedID(now ledger.Time) uuid.UUID {
	random := s.timedRandom()
	at, count := s.ids.next(now)
	binary.BigEndian.PutUint16(random[:], count)
	return ledger.NewTimedID(at, random)
}
