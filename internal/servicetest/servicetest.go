// Package servicetest provides what the tests of the service and its front ends start from: a
// World, which is a service on a store with master keys, and Tenants in it. Each package adds
// what its tests need in addition: sockets, browsers, mail servers, direct access to the
// database.
package servicetest

import (
	"bytes"
	"context"
	"crypto/rand"
	"net/http"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"countersign/internal/keyring"
	"countersign/internal/ledger"
	"countersign/internal/service"
	"countersign/internal/store"
	"countersign/internal/verify"
)

// World is a service on a store.
type World struct {
	Service *service.Service
	Store   store.Store
	Ring    *keyring.Ring
}

// Start starts a service that runs until the test ends. If the configuration has no keys, they
// are generated; without a delay, a stop does not wait for leases to expire; without a
// deliverer, tests of webhooks go to a Receiver.
func Start(t testing.TB, config service.Config) *World {
	t.Helper()
	w := &World{Store: config.Store}
	if ring, ok := config.Keys.(*keyring.Ring); ok {
		w.Ring = ring
	}
	if config.Keys == nil {
		w.Ring, _ = NewRing(t)
		config.Keys = w.Ring
	}
	if config.Secrets == nil {
		config.Secrets, _ = config.Keys.(service.Secrets)
	}
	if config.LogKeys == nil {
		config.LogKeys, _ = config.Keys.(verify.LogKeys)
	}
	if config.Deliverer == nil {
		config.Deliverer = Receiver{}
	}
	if config.Delay == nil {
		config.Delay = func(context.Context, time.Duration) error { return nil }
	}
	w.Service = service.New(config)
	t.Cleanup(w.Service.Close)
	return w
}

// NewRing generates master keys, and returns their file for rotations.
func NewRing(t testing.TB) (ring *keyring.Ring, file string) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "keys.json")
	ring, err := keyring.Create(file, rand.Reader, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return ring, file
}

// Tenant is an organization with a key of each role.
type Tenant struct {
	Slug                 string
	ID                   ledger.OrgID
	Admin, Member, Agent *service.NewKey
}

// NewTenant creates an organization with keys named after their roles.
func NewTenant(t testing.TB, s *service.Service, slug string) *Tenant {
	t.Helper()
	org, admin, err := s.Operator().CreateOrganization(t.Context(), slug, "The "+slug+" organization")
	if err != nil {
		t.Fatal(err)
	}
	return &Tenant{
		Slug: slug, ID: org.ID, Admin: admin,
		Member: NewKey(t, s, slug, "the member", ledger.RoleMember), Agent: NewKey(t, s, slug, "the agent", ledger.RoleAgent),
	}
}

// NewKey creates an API key.
func NewKey(t testing.TB, s *service.Service, slug, name string, role ledger.Role) *service.NewKey {
	t.Helper()
	key, err := s.Operator().CreateKey(t.Context(), slug, &service.KeyRequest{Name: name, Role: role})
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// Authenticate returns the caller of a key.
func Authenticate(t testing.TB, s *service.Service, key *service.NewKey) *service.Caller {
	t.Helper()
	caller, err := s.Authenticate(t.Context(), key.Text.Reveal())
	if err != nil {
		t.Fatal(err)
	}
	return caller
}

// Clock is a clock that only a test moves. It is safe for concurrent use.
type Clock struct {
	mu  sync.Mutex // guards now
	now time.Time
}

// NewClock returns a clock that shows the given time.
func NewClock(now time.Time) *Clock { return &Clock{now: now} }

// Now returns the clock's time.
func (c *Clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

// Advance moves the clock forward, or back if d is negative.
func (c *Clock) Advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// Set sets the clock's time.
func (c *Clock) Set(now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = now
}

// Buffer is a buffer that goroutines may write and read concurrently.
type Buffer struct {
	mu   sync.Mutex // guards text
	text bytes.Buffer
}

func (b *Buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *Buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// Client is for requests of tests. Those of http.DefaultClient fail now and then beside other tests:
// an httptest.Server that closes also closes the connections of the default transport.
var Client = &http.Client{Transport: http.DefaultTransport.(*http.Transport).Clone()}

// Eventually waits until a condition holds, for at most a minute. It looks less and less often:
// many conditions run a command or ask a server, and would use a processor all the time.
func Eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for pause := time.Millisecond; !holds(); pause = min(2*pause, 100*time.Millisecond) {
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			t.Fatalf("this did not happen within a minute: %s", what)
		}
	}
}
