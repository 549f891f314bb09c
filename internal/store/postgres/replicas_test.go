package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	"countersign/internal/ledger"
	"countersign/internal/store"
	"countersign/internal/store/postgres"
)

// replicas returns two stores on one database, like those of two processes.
func replicas(t *testing.T) (one, two *postgres.Store, address string) {
	t.Helper()
	address = newDatabase(t)
	return open(t, address), open(t, address), address
}

// patience is how long a test waits for something that must happen.
const patience = 30 * time.Second

func await[T any](t *testing.T, from <-chan T) T {
	t.Helper()
	select {
	case value := <-from:
		return value
	case <-time.After(patience):
		t.Fatal("timed out")
		panic("unreachable")
	}
}

// awaitWaiting returns when the given number of sessions wait for an advisory lock.
func awaitWaiting(t *testing.T, address string, count int) {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), address)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	const sql = `select count(*) from pg_locks join pg_database d on d.oid = database
		where d.datname = current_database() and locktype = 'advisory' and not granted and classid = to_regclass('organizations')::oid`
	for end := time.Now().Add(patience); time.Now().Before(end); {
		var waiting int
		if err := pool.QueryRow(t.Context(), sql).Scan(&waiting); err != nil {
			t.Fatal(err)
		}
		if waiting == count {
			return
		}
	}
	t.Fatalf("%d sessions never waited", count)
}

// hold starts a transaction that holds an organization, and returns once it does. end finishes it.
func hold(t *testing.T, s *postgres.Store, org ledger.OrgID) (end func() error) {
	t.Helper()
	held, release, ended := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	go func() {
		ended <- s.Transact(t.Context(), &store.Needs{Orgs: []ledger.OrgID{org}}, func(*store.Loaded) (*store.Changes, error) {
			close(held)
			<-release
			return &store.Changes{}, nil
		})
	}()
	free := sync.OnceFunc(func() { close(release) })
	t.Cleanup(free) // a failing test must not wait forever
	await(t, held)
	return func() error {
		free()
		return <-ended
	}
}

func rename(ctx context.Context, s *postgres.Store, org ledger.OrgID, name string) error {
	return s.Transact(ctx, &store.Needs{Govern: []ledger.OrgID{org}}, func(loaded *store.Loaded) (*store.Changes, error) {
		changed := *loaded.Orgs[org]
		changed.Name = name
		return &store.Changes{Orgs: []*ledger.Organization{&changed}}, nil
	})
}

func nameOf(ctx context.Context, s *postgres.Store, org ledger.OrgID) (name string, err error) {
	err = s.Transact(ctx, &store.Needs{Orgs: []ledger.OrgID{org}}, func(loaded *store.Loaded) (*store.Changes, error) {
		name = loaded.Orgs[org].Name
		return nil, nil
	})
	return name, err
}

// TestGovernWaitsForOtherReplicas: transactions that hold an organization run concurrently. One
// that governs it waits for them, on any replica. Later ones wait for it and see what it wrote.
//
//countersign:race
func TestGovernWaitsForOtherReplicas(t *testing.T) {
	t.Parallel()
	one, two, address := replicas(t)
	who, other := newTenant(t, one), newTenant(t, one)
	endFirst, endSecond := hold(t, one, who.org), hold(t, two, who.org)

	renamed, seen := make(chan error, 1), make(chan string, 1)
	go func() { renamed <- rename(t.Context(), two, who.org, "renamed") }()
	awaitWaiting(t, address, 1)
	go func() {
		name, err := nameOf(t.Context(), one, who.org)
		if err != nil {
			t.Errorf("read: %v", err)
		}
		seen <- name
	}()
	awaitWaiting(t, address, 2)
	if err := rename(t.Context(), one, other.org, "another"); err != nil {
		t.Errorf("another organization: %v", err)
	}
	select {
	case err := <-renamed:
		t.Errorf("the organization was changed under those who held it, error %v", err)
	case name := <-seen:
		t.Errorf("%q was read before a change that came first", name)
	default:
	}
	if err := errors.Join(endFirst(), endSecond(), await(t, renamed)); err != nil {
		t.Errorf("transact: %v", err)
	}
	if name := await(t, seen); name != "renamed" {
		t.Errorf("the name is %q, want what was written before", name)
	}
}

// TestOrganizationsAreAlwaysFresh: the cache saves decoding, not reading.
func TestOrganizationsAreAlwaysFresh(t *testing.T) {
	t.Parallel()
	one, two, address := replicas(t)
	who := newTenant(t, one)
	for i := range 4 {
		want := fmt.Sprint("name ", i)
		if i%2 == 0 {
			administer(t, address, "update organizations set name = $1", want)
		} else if err := rename(t.Context(), two, who.org, want); err != nil {
			t.Fatalf("rename: %v", err)
		}
		for _, s := range []*postgres.Store{one, two} {
			if name, err := nameOf(t.Context(), s, who.org); err != nil || name != want {
				t.Errorf("the name is %q, want %q, error %v", name, want, err)
			}
		}
	}
}

// Two replicas run each job once, and never run two jobs of one stream at the same time.
//
//countersign:race
func TestClaimsOfTwoReplicas(t *testing.T) {
	t.Parallel()
	const jobs, streams, workers = 600, 40, 3
	one, two, _ := replicas(t)
	who := newTenant(t, one)
	changes := new(store.Changes)
	for i := range jobs {
		job := &store.Job{Org: who.org, Kind: "work", Body: []byte{}}
		if i%2 == 0 {
			job.Stream = fmt.Sprint("stream ", i%streams)
		}
		changes.NewJobs = append(changes.NewJobs, job)
	}
	err := one.Transact(t.Context(), &store.Needs{}, func(*store.Loaded) (*store.Changes, error) { return changes, nil })
	if err != nil {
		t.Fatalf("transact: %v", err)
	}
	ledger := &claims{running: make(map[string]bool), done: make(map[int64]bool), want: jobs}
	var group errgroup.Group
	for _, s := range []*postgres.Store{one, two} {
		for range workers {
			group.Go(func() error { return ledger.work(t.Context(), s) })
		}
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	waiting, buried, err := two.CountJobs(t.Context())
	if err != nil || waiting != 0 || buried != 0 {
		t.Errorf("%d jobs wait and %d are buried, error %v", waiting, buried, err)
	}
}

// claims tracks the jobs of several workers.
type claims struct {
	mu      sync.Mutex
	running map[string]bool // streams
	done    map[int64]bool  // jobs, when they are claimed
	want    int
}

func (c *claims) begin(job *store.Job) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.done[job.No] {
		return fmt.Errorf("job %d was claimed twice", job.No)
	}
	if job.Stream != "" && c.running[job.Stream] {
		return fmt.Errorf("two jobs of %q were claimed at a time", job.Stream)
	}
	c.done[job.No], c.running[job.Stream] = true, true
	return nil
}

func (c *claims) end(job *store.Job) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.running, job.Stream)
}

func (c *claims) finished() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.done) == c.want
}

func (c *claims) work(ctx context.Context, s *postgres.Store) error {
	for range 100_000 {
		if c.finished() {
			return nil
		}
		jobs, err := s.ClaimJobs(ctx, 1, 2, map[string]int{"work": 5})
		if err != nil {
			return err
		}
		for _, job := range jobs {
			if err := c.begin(job); err != nil {
				return err
			}
		}
		for _, job := range jobs {
			c.end(job)
			if err := s.FinishJob(ctx, job, nil); err != nil {
				return err
			}
		}
	}
	return errors.New("some jobs were never handed out")
}

// TestFaultsOfAnyText: any text from an external server can be stored.
func TestFaultsOfAnyText(t *testing.T) {
	t.Parallel()
	s := open(t, newDatabase(t))
	who := newTenant(t, s)
	err := s.Transact(t.Context(), &store.Needs{}, func(*store.Loaded) (*store.Changes, error) {
		return &store.Changes{NewJobs: []*store.Job{{Org: who.org, Kind: "work"}}}, nil
	})
	if err != nil {
		t.Fatalf("transact: %v", err)
	}
	for i, fault := range []string{"", "\x00\xff\xfe", fmt.Sprintf("%01999d%s", 0, "üü"), fmt.Sprintf("%09999d", 0)} {
		jobs, err := s.ClaimJobs(t.Context(), ledger.Time(i), ledger.Time(i+1), map[string]int{"work": 1})
		if err != nil || len(jobs) != 1 {
			t.Fatalf("%d jobs, error %v", len(jobs), err)
		}
		if err := s.RetryJob(t.Context(), jobs[0], ledger.Time(i), fault); err != nil {
			t.Errorf("fault %d: %v", i, err)
		}
	}
}
