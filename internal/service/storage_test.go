package service_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"countersign/internal/fault"
	"countersign/internal/service"
	"countersign/internal/store"
)

// faultyStore is a store whose probe a test controls.
type faultyStore struct {
	store.Store
	mu    sync.Mutex // guards both
	fault error
	stuck chan struct{} // a probe waits until it is closed; nil for no wait
}

func (s *faultyStore) Ping(context.Context) error { return nil }

func (s *faultyStore) Probe(context.Context) error {
	s.mu.Lock()
	fault, stuck := s.fault, s.stuck
	s.mu.Unlock()
	if stuck != nil {
		<-stuck
	}
	return fault
}

func (s *faultyStore) become(fault error, stuck chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fault, s.stuck = fault, stuck
}

// Watch never reports a change.
func (s *faultyStore) Watch(ctx context.Context, _ func(uuid.UUID), _ func()) error {
	<-ctx.Done()
	return nil
}

// A caller reads what is wrong with a store if trying again does not help.
func TestCallersReadWhatIsWrongWithAStore(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		err  error
		code fault.Code
		says string
	}{
		{fmt.Errorf("%w: %w", store.ErrUnavailable, store.ErrDamaged), fault.CodeUnavailable, "it is damaged; run countersign doctor; nothing was stored"},
		{fmt.Errorf("%w: %w", store.ErrUnavailable, store.ErrFull), fault.CodeUnavailable, "make room; nothing was stored"},
		{fmt.Errorf("%w: %w", store.ErrUnavailable, store.ErrReadOnly), fault.CodeUnavailable, "is read-only; nothing was stored"},
		{fmt.Errorf("%w: %w", store.ErrUnavailable, store.ErrInputOutput), fault.CodeUnavailable, "nothing was stored: try again"},
		{store.ErrUnavailable, fault.CodeUnavailable, "nothing was stored: try again"},
		{fmt.Errorf("%w: %w", store.ErrOutcomeUnknown, store.ErrFull), fault.CodeOutcomeUnknown, "send the same request again"},
	} {
		var shown *fault.Error
		if err := service.Visible(test.err); !errors.As(err, &shown) || shown.Code != test.code || !strings.HasSuffix(shown.Message, test.says) {
			t.Errorf("%v: %v, want %s, %q", test.err, err, test.code, test.says)
		}
	}
}

// A fault of the store shows within five seconds, with its kind, and so does its end, even if a
// probe never returns.
//
//countersign:race
func TestFaultsOfTheStoreShow(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name  string
		fault error
		stuck bool
		says  string
	}{
		{"full", fmt.Errorf("%w: %w", store.ErrUnavailable, store.ErrFull), false, "no space left"},
		{"full at the commit", fmt.Errorf("%w: %w", store.ErrOutcomeUnknown, store.ErrFull), false, "no space left"},
		{"read-only", fmt.Errorf("%w: %w", store.ErrUnavailable, store.ErrReadOnly), false, "read-only"},
		{"failing", fmt.Errorf("%w: %w", store.ErrOutcomeUnknown, store.ErrInputOutput), false, "input/output"},
		{"damaged", fmt.Errorf("%w: %w", store.ErrUnavailable, store.ErrDamaged), false, "cannot be read"},
		{"late", fmt.Errorf("%w: %w", store.ErrUnavailable, context.DeadlineExceeded), false, "does not answer"},
		{"unconfirmed", store.ErrOutcomeUnknown, false, "does not confirm"},
		{"gone", store.ErrUnavailable, false, "cannot be reached"},
		{"stuck", nil, true, "does not answer"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				probed := &faultyStore{}
				s := service.New(service.Config{Store: probed, Probe: true})
				defer s.Close()
				await := func(ready bool) {
					t.Helper()
					time.Sleep(5 * time.Second) // of the bubble's own time
					err := s.Ready(t.Context())
					if (err == nil) != ready {
						t.Fatalf("after five seconds: %v", err)
					}
					if err != nil && !strings.Contains(service.StorageDetail(err), test.says) {
						t.Errorf("it says %q, want %q", service.StorageDetail(err), test.says)
					}
				}
				await(true)
				stuck := make(chan struct{})
				if test.stuck {
					probed.become(nil, stuck)
				} else {
					probed.become(test.fault, nil)
				}
				await(false)
				probed.become(nil, nil)
				close(stuck)
				await(true)
			})
		})
	}
}
