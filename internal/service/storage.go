package service

import (
	"context"
	"errors"
	"sync"
	"time"

	"countersign/internal/store"
)

const (
	// probeInterval and probeTimeout add up to how late a fault of the store shows.
	probeInterval = 1500 * time.Millisecond
	probeTimeout  = 2 * time.Second
)

// storageWatch knows whether the store can be read and takes writes. A probe finds out,
// because reads are answered from memory for long after the disk has gone, and because a
// server that nobody writes to would not notice.
type storageWatch struct {
	mu      sync.Mutex
	probed  bool      // whether anything probes
	fault   error     // of the last probe; nil where it succeeded
	began   time.Time // when the probe under way began; zero where none is
	written time.Time // when a write last succeeded
}

var errNoAnswer = errors.New("the store does not answer")

// verdict is nil while the store can be read and written.
func (w *storageWatch) verdict(now time.Time) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.fault != nil:
		return w.fault
	case !w.began.IsZero() && now.Sub(w.began) > probeTimeout && now.Sub(w.written) > probeTimeout:
		return errNoAnswer // it may never come: not every wait for a disk can be ended
	}
	return nil
}

// wrote notes that a write has succeeded.
func (w *storageWatch) wrote() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.written = time.Now()
}

// begin notes that a probe begins, and tells whether it needs to write.
func (w *storageWatch) begin() (write bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.began = time.Now()
	return w.fault != nil || w.began.Sub(w.written) >= probeInterval/2
}

// end notes what a probe came to, and returns what the one before it did.
func (w *storageWatch) end(fault error, wrote bool) (before error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	before = w.fault
	w.fault, w.began = fault, time.Time{}
	if fault == nil && wrote {
		w.written = time.Now()
	}
	return before
}

// watchStorage probes the store until ctx ends.
func (s *Service) watchStorage(ctx context.Context) {
	ticker := time.NewTicker(probeInterval)
	defer ticker.Stop()
	for {
		s.probe(ctx)
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

func (s *Service) probe(ctx context.Context) {
	probing, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	write := s.storage.begin()
	err := s.store.Ping(probing)
	if err == nil && write {
		err = s.store.Probe(probing)
	}
	if ctx.Err() != nil { // the service stops
		err = nil
	}
	switch before := s.storage.end(err, write); {
	case err != nil && (before == nil || storageDetail(before) != storageDetail(err)):
		s.log.Error("not ready: "+storageDetail(err), "error", err)
	case err == nil && before != nil:
		s.log.Info("the store can be read and written again")
	}
}

// Ready answers whether requests can be served: nil, or an error whose text StorageDetail
// makes fit for strangers.
func (s *Service) Ready(ctx context.Context) error {
	if s.storage.probed {
		return s.storage.verdict(time.Now())
	}
	return s.store.Ping(ctx)
}

// StorageDetail says what is wrong with the store, for anyone: it names no file and no
// address.
func StorageDetail(err error) string { return storageDetail(err) }

func storageDetail(err error) string {
	switch {
	case errors.Is(err, store.ErrDamaged):
		return "the database cannot be read: its disk fails, or it is damaged; run countersign doctor"
	case errors.Is(err, store.ErrFull):
		return "there is no space left for the database: make room"
	case errors.Is(err, store.ErrReadOnly):
		return "the database, or the file system that it is on, is read-only"
	case errors.Is(err, store.ErrInputOutput):
		return "reading or writing the database failed (input/output error): see the log"
	case errors.Is(err, errNoAnswer), errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return "the store does not answer"
	case errors.Is(err, store.ErrOutcomeUnknown):
		return "the store does not confirm writes"
	}
	return "the store cannot be reached: see the log"
}
