package httpapi

import (
	"context"
	"math"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/time/rate"

	"countersign/internal/fault"
	"countersign/internal/ledger"
	"countersign/internal/service"
)

// limiter limits the rate of each address. Limiters are kept in two generations, and an address that
// was idle for a whole generation is dropped: its burst would be full again anyway.
type limiter struct {
	rate  rate.Limit
	burst int

	mu      sync.Mutex // guards the fields below
	turned  time.Time  // when current was begun
	current map[netip.Addr]*rate.Limiter
	old     map[netip.Addr]*rate.Limiter
}

const (
	generation    = time.Minute
	maxGeneration = 50_000 // addresses
)

func newLimiter(perSecond, burst float64) *limiter {
	return &limiter{rate: rate.Limit(perSecond), burst: max(int(burst), 1), current: make(map[netip.Addr]*rate.Limiter)}
}

func (l *limiter) of(address netip.Addr) *rate.Limiter {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now := time.Now(); now.Sub(l.turned) > generation || len(l.current) >= maxGeneration {
		l.old, l.current, l.turned = l.current, make(map[netip.Addr]*rate.Limiter), now
	}
	if found, ok := l.current[address]; ok {
		return found
	}
	found, ok := l.old[address]
	if !ok {
		found = rate.NewLimiter(l.rate, l.burst)
	}
	l.current[address] = found
	return found
}

// take counts one request. It returns 0 if the request is within the limit, and otherwise how long
// to wait.
func (l *limiter) take(address netip.Addr) time.Duration {
	if l.rate <= 0 {
		return 0
	}
	own := l.of(address)
	if own.Allow() {
		return 0
	}
	return time.Duration(float64(time.Second) / float64(l.rate))
}

// wait is take without counting. It allocates nothing for an address that was never counted, because
// it runs before every authenticated request.
func (l *limiter) wait(address netip.Addr) time.Duration {
	if l.rate <= 0 {
		return 0
	}
	l.mu.Lock()
	own, ok := l.current[address]
	if !ok {
		own, ok = l.old[address]
	}
	l.mu.Unlock()
	if !ok || own.Tokens() >= 1 {
		return 0
	}
	return time.Duration(float64(time.Second) / float64(l.rate))
}

// pollSlots bounds the number of requests that wait for a decision. Each of them occupies a
// connection, and they must not exhaust the process's file descriptors.
type pollSlots struct {
	most int

	mu    sync.Mutex // guards the fields below
	total int
	byKey map[ledger.KeyID]int
	byOrg map[ledger.OrgID]int
}

const (
	maxPollsPerKey = 200
	// pollRetryAfter is the Retry-After of a poll that was refused.
	pollRetryAfter = 5 * time.Second
)

// newPollSlots returns the given number of slots, or half of the file descriptors that the process
// may open if most is 0.
func newPollSlots(most int) pollSlots {
	var limit syscall.Rlimit
	if most == 0 && syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit) == nil {
		most = int(min(limit.Cur/2, math.MaxInt32))
	}
	return pollSlots{most: max(most, 1), byKey: make(map[ledger.KeyID]int), byOrg: make(map[ledger.OrgID]int)}
}

// enter reports whether another request of the key may wait. If so, the caller must call leave. One
// organization gets at most three quarters of the slots, however many keys it has.
func (p *pollSlots) enter(org ledger.OrgID, key ledger.KeyID) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.total >= p.most || p.byOrg[org] >= max(p.most*3/4, 1) || p.byKey[key] >= maxPollsPerKey {
		return false
	}
	p.total++
	p.byOrg[org]++
	p.byKey[key]++
	return true
}

func (p *pollSlots) leave(org ledger.OrgID, key ledger.KeyID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.total--
	if p.byOrg[org]--; p.byOrg[org] == 0 {
		delete(p.byOrg, org)
	}
	if p.byKey[key]--; p.byKey[key] == 0 {
		delete(p.byKey, key)
	}
}

// orgSlots bounds the number of concurrent requests of each organization. Further requests wait in
// the order of their arrival.
type orgSlots struct {
	most int

	mu sync.Mutex
	of map[ledger.OrgID]*orgSlot // guarded by mu
}

// orgSlot counts the requests of one organization.
type orgSlot struct {
	requests int           // that wait for a slot or hold one; guarded by orgSlots.mu
	sem      chan struct{} // one value for each slot that is held
}

func newOrgSlots(most int) orgSlots {
	return orgSlots{most: most, of: make(map[ledger.OrgID]*orgSlot)}
}

// enter waits for a slot. It reports whether it got one before ctx was done; if so, the caller must
// call leave.
func (o *orgSlots) enter(ctx context.Context, org ledger.OrgID) bool {
	o.mu.Lock()
	slot := o.of[org]
	if slot == nil {
		slot = &orgSlot{sem: make(chan struct{}, o.most)}
		o.of[org] = slot
	}
	slot.requests++
	o.mu.Unlock()
	select {
	case slot.sem <- struct{}{}: // the common case
		return true
	default:
	}
	select {
	case slot.sem <- struct{}{}:
		return true
	case <-ctx.Done():
		o.forget(org, slot)
		return false
	}
}

func (o *orgSlots) leave(org ledger.OrgID) {
	o.mu.Lock()
	slot := o.of[org]
	o.mu.Unlock()
	<-slot.sem
	o.forget(org, slot)
}

func (o *orgSlots) forget(org ledger.OrgID, slot *orgSlot) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if slot.requests--; slot.requests == 0 {
		delete(o.of, org)
	}
}

// sharedSlots bounds the number of concurrent requests of each organization and of all together, so
// that no organization can take every slot.
type sharedSlots struct {
	each  orgSlots
	taken chan struct{} // one value for each slot that is held
}

func newSharedSlots(most, mostOfEach int) sharedSlots {
	return sharedSlots{each: newOrgSlots(mostOfEach), taken: make(chan struct{}, most)}
}

// enter works like that of orgSlots.
func (s *sharedSlots) enter(ctx context.Context, org ledger.OrgID) bool {
	if !s.each.enter(ctx, org) {
		return false
	}
	select {
	case s.taken <- struct{}{}:
		return true
	case <-ctx.Done():
		s.each.leave(org)
		return false
	}
}

func (s *sharedSlots) leave(org ledger.OrgID) {
	<-s.taken
	s.each.leave(org)
}

// address returns the address that a request counts against. Behind trusted proxies it is the last
// address in X-Forwarded-For that is not a trusted proxy; the client can forge everything before
// it. An IPv6 address counts as its /64, which is what one customer usually has.
func (a *API) address(r *http.Request) netip.Addr {
	address := parseAddress(r.RemoteAddr)
	if a.trusted(address) {
		claimed := strings.Split(strings.Join(r.Header.Values("X-Forwarded-For"), ","), ",")
		for i := len(claimed) - 1; i >= 0 && a.trusted(address); i-- {
			next := parseAddress(strings.TrimSpace(claimed[i]))
			if !next.IsValid() {
				break
			}
			address = next
		}
	}
	if address.Is6() {
		prefix, err := address.WithZone("").Prefix(64)
		if err == nil {
			return prefix.Addr()
		}
	}
	return address
}

func (a *API) trusted(address netip.Addr) bool {
	for _, prefix := range a.proxies {
		if prefix.Contains(address) {
			return true
		}
	}
	return false
}

func parseAddress(text string) netip.Addr {
	if host, _, err := net.SplitHostPort(text); err == nil {
		text = host
	}
	address, err := netip.ParseAddr(text)
	if err != nil {
		return netip.Addr{}
	}
	return address.Unmap()
}

// The console uses the methods below, so that an address or an organization has one limit for both
// front ends.

// Public counts a request on a public page. It returns 0, or how long to wait if there were too
// many.
func (a *API) Public(r *http.Request) time.Duration { return a.public.take(a.address(r)) }

// SignIn returns how long to wait before the next attempt to sign in.
func (a *API) SignIn(r *http.Request) time.Duration { return a.failures.wait(a.address(r)) }

// SignInFailed counts a failed attempt to sign in.
func (a *API) SignInFailed(r *http.Request) { a.failures.take(a.address(r)) }

// Read waits for a slot for a request that only reads, and returns what releases it. There are few
// connections to the store, and writers need them too. So one organization may occupy only some of
// them, and its agents cannot occupy those of its members.
func (a *API) Read(ctx context.Context, caller *service.Caller) (release func(), err error) {
	slots := &a.agents
	if caller.Role.Includes(ledger.RoleMember) {
		slots = &a.reads
	}
	ctx, cancel := context.WithTimeout(ctx, readWait)
	defer cancel()
	if !slots.enter(ctx, caller.Org) {
		return nil, fault.Errorf(fault.CodeUnavailable, "this organization has too many concurrent reads: try again")
	}
	return func() { slots.leave(caller.Org) }, nil
}

// Secure reports whether the browser uses TLS, to this server or to a trusted proxy in front of it.
func (a *API) Secure(r *http.Request) bool {
	return r.TLS != nil || (a.trusted(parseAddress(r.RemoteAddr)) && r.Header.Get("X-Forwarded-Proto") == "https")
}
