// Package servicetest is what the tests of the service and of its front ends
// start from: a World, which is a service on a store with master keys and a clock
// of its own, and Tenants in it. Each package adds to it what its tests speak to:
// sockets, browsers, mail servers, a way past the store.
package servicetest

import (
	"bytes"
	"context"
	"crypto/rand"
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

// Start serves a configuration until the test ends. Where it names no keys, they
// are made; where it names no delay, a stop does not wait for leases to run out; where
// it names no deliverer, tests of webhooks go to a Receiver.
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

// NewRing makes master keys, and says in which file, for rotations.
func NewRing(t testing.TB) (ring *keyring.Ring, file string) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "keys.json")
	ring, err := keyring.Create(file, rand.Reader, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return ring, file
}

// Tenant is an organization with a key of every role.
type Tenant struct {
	Slug                 string
	ID                   ledger.OrgID
	Admin, Member, Agent *service.NewKey
}

// NewTenant makes an organization, and keys named after their roles.
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

// NewKey makes an API key.
func NewKey(t testing.TB, s *service.Service, slug, name string, role ledger.Role) *service.NewKey {
	t.Helper()
	key, err := s.Operator().CreateKey(t.Context(), slug, &service.KeyRequest{Name: name, Role: role})
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// Authenticate is the caller whom a key stands for.
func Authenticate(t testing.TB, s *service.Service, key *service.NewKey) *service.Caller {
	t.Helper()
	caller, err := s.Authenticate(t.Context(), key.Text.Reveal())
	if err != nil {
		t.Fatal(err)
	}
	return caller
}

// Clock stands still until a test moves it.
type Clock struct {
	mu  sync.Mutex
	now time.Time
}

// NewClock makes a clock that shows a moment.
func NewClock(now time.Time) *Clock { return &Clock{now: now} }

// Now is what the clock shows.
func (c *Clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

// Advance moves the clock, backwards too.
func (c *Clock) Advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// Set makes the clock show a moment.
func (c *Clock) Set(now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = now
}

// Buffer collects what one goroutine writes while others read it.
type Buffer struct {
	mu   sync.Mutex
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

// Eventually waits until a condition holds, for at most a minute.
func Eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	ticker := time.NewTicker(time.Millisecond)
	defer ticker.Stop()
	for !holds() {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			t.Fatalf("this did not come about within a minute: %s", what)
		}
	}
}
