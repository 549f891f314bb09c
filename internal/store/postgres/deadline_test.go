package postgres_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

// atLeast and atMost bound how long a caller waits for an answer that does not come. The timeout is
// 5 s, and the machine may be busy.
const atLeast, atMost = 4 * time.Second, 20 * time.Second

// A COMMIT that is not answered in time is reported as unknown, is not cancelled, and keeps its
// connection until the answer comes. While many commits are pending, no transaction starts.
//
//countersign:race
func TestCommitThatIsAnsweredLate(t *testing.T) {
	t.Parallel()
	address := newDatabase(t)
	direct := open(t, address)
	who := newTenant(t, direct)
	between, through := newProxy(t, address)
	s := open(t, through)
	answers := make(chan struct{})
	var release sync.Once
	t.Cleanup(func() { release.Do(func() { close(answers) }) })
	var late interference = func(l *link, commit []byte) []byte {
		l.hold.Store(&answers)
		return commit
	}
	between.onCommit.Store(&late)
	chain := who.newChain()
	began := time.Now()
	if err := insert(t.Context(), s, chain); !errors.Is(err, store.ErrOutcomeUnknown) {
		t.Errorf("error %v, want %v", err, store.ErrOutcomeUnknown)
	}
	if took := time.Since(began); took < atLeast || took > atMost {
		t.Errorf("the caller was answered after %s", took)
	}
	if !exists(t, direct, chain) {
		t.Error("the commit was undone")
	}
	if pending := s.PendingCommits(); pending != 1 {
		t.Errorf("%d commits are pending, want 1", pending)
	}
	if err := insert(t.Context(), s, who.newChain()); err != nil {
		t.Errorf("the next transaction: %v", err)
	}
	s.AddPendingCommits(100)
	if err := insert(t.Context(), s, who.newChain()); !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("with many commits pending: error %v, want %v", err, store.ErrUnavailable)
	}
	s.AddPendingCommits(-100)
	release.Do(func() { close(answers) })
	eventually(t, func() bool { return s.PendingCommits() == 0 })
	if cancels := between.cancels.Load(); cancels != 0 {
		t.Errorf("%d requests to cancel were sent, want none", cancels)
	}
}

// Every kind of read fails after its timeout if the server does not answer, and the next read does
// not wait for another dead connection.
//
//countersign:race
func TestReadsOfAServerThatDoesNotAnswer(t *testing.T) {
	t.Parallel()
	address := newDatabase(t)
	who := newTenant(t, open(t, address))
	chain := who.newChain()
	for name, read := range map[string]func(context.Context, store.Store) error{
		"one":  func(ctx context.Context, s store.Store) error { _, err := s.Chain(ctx, chain.ID); return err },
		"list": func(ctx context.Context, s store.Store) error { _, err := s.Organizations(ctx); return err },
		"row":  func(ctx context.Context, s store.Store) error { _, _, err := s.CountJobs(ctx); return err },
		"scan": func(ctx context.Context, s store.Store) error {
			return s.ScanChains(ctx, who.org, func(*store.ChainRecord) error { return nil })
		},
		"group": func(ctx context.Context, s store.Store) error {
			_, err := s.NamedReceipt(ctx, ledger.ReceiptID{})
			return err
		},
		"trip": func(ctx context.Context, s store.Store) error {
			_, err := s.ActLogs(ctx, []ledger.OrgID{who.org})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			between, through := newProxy(t, address)
			s := open(t, through)
			var several sync.WaitGroup // so that the pool has some connections
			for range 4 {
				several.Go(func() { _ = read(t.Context(), s) })
			}
			several.Wait()
			between.freeze()
			began := time.Now()
			if err := read(t.Context(), s); !errors.Is(err, store.ErrUnavailable) {
				t.Errorf("error %v, want %v", err, store.ErrUnavailable)
			}
			if took := time.Since(began); took < atLeast || took > atMost {
				t.Errorf("answered after %s", took)
			}
			began = time.Now()
			if err := read(t.Context(), s); err != nil && !errors.Is(err, store.ErrNotFound) {
				t.Errorf("the next read: %v", err)
			}
			if took := time.Since(began); took > atLeast {
				t.Errorf("the next read was answered after %s", took)
			}
		})
	}
}

// A scan with a slow visitor is not interrupted: only the wait for the server counts. A caller that
// gives up does not reset the other connections.
func TestOnlyTheServerIsWaitedFor(t *testing.T) {
	t.Parallel()
	s := open(t, newDatabase(t))
	who := newTenant(t, s)
	if err := insert(t.Context(), s, who.newChain(), who.newChain()); err != nil {
		t.Fatal(err)
	}
	seen := 0
	err := s.ScanChains(t.Context(), who.org, func(*store.ChainRecord) error {
		seen++
		<-time.After(3 * time.Second)
		return nil
	})
	if err != nil || seen != 2 {
		t.Errorf("%d chains were seen, %v", seen, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	err = s.ScanChains(ctx, who.org, func(*store.ChainRecord) error {
		cancel()
		return nil
	})
	if err != nil && !errors.Is(err, store.ErrUnavailable) {
		t.Error(err)
	}
	if s.Resets() != 0 {
		t.Error("a caller that gave up reset all connections")
	}
}

// If the server ends a session because it was idle in its transaction, nothing was written, and the
// caller gets an error that says so.
func TestSessionThatWasIdleInItsTransaction(t *testing.T) {
	t.Parallel()
	s := open(t, newDatabase(t))
	who := newTenant(t, s)
	chain := who.newChain()
	err := s.Transact(t.Context(), &store.Needs{Heads: []ledger.OrgID{who.org}}, func(*store.Loaded) (*store.Changes, error) {
		<-time.After(4 * time.Second)
		return &store.Changes{NewChains: []*store.ChainRecord{chain}}, nil
	})
	if !errors.Is(err, store.ErrUnavailable) || errors.Is(err, store.ErrOutcomeUnknown) {
		t.Errorf("error %v, want %v", err, store.ErrUnavailable)
	}
	if exists(t, s, chain) {
		t.Error("the chain was written")
	}
}

func eventually(t *testing.T, holds func() bool) {
	t.Helper()
	for began := time.Now(); !holds(); <-time.After(10 * time.Millisecond) {
		if time.Since(began) > atMost {
			t.Fatal("it never holds")
		}
	}
}
