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

	"countersign/internal/ledger"
)

// limiter holds each address to a rate. Addresses that have been quiet for a
// while are forgotten: a limiter at rest has its whole burst again anyway, so
// two generations that take turns are memory enough.
type limiter struct {
	rate  rate.Limit
	burst int

	mu      sync.Mutex
	turned  time.Time
	current map[netip.Addr]*rate.Limiter
	old     map[netip.Addr]*rate.Limiter
}

const (
	generation    = time.Minute
	maxGeneration = 50_000
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

// take uses up one request and returns how long to wait when there is none left.
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

// wait is take without using anything up. An address that was never counted
// costs nothing: this stands before every authenticated request.
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

// pollSlots bounds the requests that wait for a decision. Each holds a connection, and
// whoever waits must not keep others from being served.
type pollSlots struct {
	most int

	mu    sync.Mutex
	total int
	byKey map[ledger.KeyID]int
	byOrg map[ledger.OrgID]int
}

const (
	mostPollsOfKey = 200
	// pollsPause is how long a client that may not wait is asked to stay away.
	pollsPause = 5 * time.Second
)

// newPollSlots makes room for so many, 0 for half of the descriptors that the process
// may have open.
func newPollSlots(most int) pollSlots {
	var limit syscall.Rlimit
	if most == 0 && syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit) == nil {
		most = int(min(limit.Cur/2, math.MaxInt32))
	}
	return pollSlots{most: max(most, 1), byKey: make(map[ledger.KeyID]int), byOrg: make(map[ledger.OrgID]int)}
}

// enter reports whether another request of the key may wait. Then leave must be called.
// One organization, however many keys it has, leaves a quarter of the room to the others.
func (p *pollSlots) enter(org ledger.OrgID, key ledger.KeyID) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.total >= p.most || p.byOrg[org] >= max(p.most*3/4, 1) || p.byKey[key] >= mostPollsOfKey {
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

// orgSlots bounds how many requests of each organization do something at once. The others
// wait, in the order in which they came.
type orgSlots struct {
	most int

	mu sync.Mutex
	of map[ledger.OrgID]*orgSlot
}

// orgSlot is what one organization has under way.
type orgSlot struct {
	requests int           // that wait or have a place; guarded by orgSlots.mu
	places   chan struct{} // holds a value for each that has one
}

func newOrgSlots(most int) orgSlots {
	return orgSlots{most: most, of: make(map[ledger.OrgID]*orgSlot)}
}

// enter waits for a place, and reports whether there was one before ctx ended. Then leave
// must be called.
func (o *orgSlots) enter(ctx context.Context, org ledger.OrgID) bool {
	o.mu.Lock()
	slot := o.of[org]
	if slot == nil {
		slot = &orgSlot{places: make(chan struct{}, o.most)}
		o.of[org] = slot
	}
	slot.requests++
	o.mu.Unlock()
	select {
	case slot.places <- struct{}{}: // as almost always
		return true
	default:
	}
	select {
	case slot.places <- struct{}{}:
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
	<-slot.places
	o.forget(org, slot)
}

func (o *orgSlots) forget(org ledger.OrgID, slot *orgSlot) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if slot.requests--; slot.requests == 0 {
		delete(o.of, org)
	}
}

// sharedSlots bounds how many requests do something at once, of all organizations and of
// each, so that none of them can take all the places.
type sharedSlots struct {
	each orgSlots
	free chan struct{} // holds a value for each place that is taken
}

func newSharedSlots(most, mostOfEach int) sharedSlots {
	return sharedSlots{each: newOrgSlots(mostOfEach), free: make(chan struct{}, most)}
}

// enter is as of orgSlots.
func (s *sharedSlots) enter(ctx context.Context, org ledger.OrgID) bool {
	if !s.each.enter(ctx, org) {
		return false
	}
	select {
	case s.free <- struct{}{}:
		return true
	case <-ctx.Done():
		s.each.leave(org)
		return false
	}
}

func (s *sharedSlots) leave(org ledger.OrgID) {
	<-s.free
	s.each.leave(org)
}

// address is who a request counts against. Behind trusted proxies it is the last
// address of X-Forwarded-For that is not one of them: what stands before it is
// the client's own claim. An IPv6 customer has a whole /64 to choose from.
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

// The limits are the console's too: an address is held to one rate, whichever
// front end it knocks at.

// Public counts a request on a public page and returns how long to wait when
// there were too many.
func (a *API) Public(r *http.Request) time.Duration { return a.public.take(a.address(r)) }

// SignIn returns how long to wait before another attempt to sign in.
func (a *API) SignIn(r *http.Request) time.Duration { return a.failures.wait(a.address(r)) }

// SignInFailed counts a failed attempt.
func (a *API) SignInFailed(r *http.Request) { a.failures.take(a.address(r)) }

// Secure reports whether the browser speaks TLS, to this server or to a trusted
// proxy before it.
func (a *API) Secure(r *http.Request) bool {
	return r.TLS != nil || (a.trusted(parseAddress(r.RemoteAddr)) && r.Header.Get("X-Forwarded-Proto") == "https")
}
