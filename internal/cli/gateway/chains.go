package gateway

import (
	"cmp"
	"context"
	"crypto/sha256"
	"fmt"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/google/uuid"

	"countersign/internal/cli"
)

// rolloverShare is how much of a limit a chain uses before another one follows: what begins in it must
// also end before the limit.
const rolloverShare = 0.9

// The limits at which a service pauses a chain if nobody has set others.
const (
	defaultMaxEvents  = 10_000
	defaultMaxSeconds = 86_400
)

// chains are the chains of one session of a client: opened with its first call, followed by another
// before the service would pause it, completed with the session. It is safe for concurrent use.
type chains struct {
	api      *cli.Client
	describe func() (name string, metadata map[string]string)
	log      func(format string, args ...any)

	opening sync.Mutex // held while a chain is opened; taken before mu
	mu      sync.Mutex
	current *chain // nil until the first call
	ended   bool
	// postponed are the calls that wait for a person although their client was answered, by what they do.
	postponed map[[sha256.Size]byte]postponedCall
	open      sync.WaitGroup // chains that are not completed yet
}

// chain is one chain. Its counters are guarded by the mu of its chains.
type chain struct {
	began   time.Time
	lasts   time.Duration // until the next chain follows
	actions int64         // taken so far
	most    int64         // actions, until the next chain follows
	calls   int           // that are under way
	retired bool          // another one followed, or the session ended

	mu sync.Mutex
	id string // the service may continue an abandoned chain under another id
}

func (c *chain) path(rest string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return "/v1/chains/" + url.PathEscape(c.id) + rest
}

// note follows the chain that an answer names.
func (c *chain) note(d *decision) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if d.ChainID != "" {
		c.id = d.ChainID
	}
}

// postponedCall is a call that its client may repeat once it is approved.
type postponedCall struct {
	chain *chain
	key   string // of its action
}

func fingerprint(act *action) [sha256.Size]byte {
	return sha256.Sum256(append([]byte(act.Agent+"\x00"+act.Tool+"\x00"), act.Input...))
}

// postpone keeps a call for its repetition. The caller still has to leave the chain. postpone returns false
// if there is no room.
func (s *chains) postpone(c *chain, act *action) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	call := fingerprint(act)
	if _, known := s.postponed[call]; known || len(s.postponed) >= maxOpenCalls || s.ended {
		return false
	}
	if s.postponed == nil {
		s.postponed = make(map[[sha256.Size]byte]postponedCall)
	}
	s.postponed[call] = postponedCall{c, act.Key}
	c.calls++
	return true
}

// resume takes up a call that was postponed: it gets the key of its action, which lets it begin once. It
// returns the chain of the action, which the caller must leave, or nil if the call is another one.
func (s *chains) resume(act *action) *chain {
	s.mu.Lock()
	defer s.mu.Unlock()
	call := fingerprint(act)
	found, known := s.postponed[call]
	if !known || s.ended {
		return nil
	}
	delete(s.postponed, call)
	act.Key = found.key
	return found.chain
}

// take returns the chain for a call, which the caller must leave.
func (s *chains) take(ctx context.Context) (*chain, error) {
	if c, err := s.join(); c != nil || err != nil {
		return c, err
	}
	s.opening.Lock()
	defer s.opening.Unlock()
	if c, err := s.join(); c != nil || err != nil { // somebody else has opened one
		return c, err
	}
	next, err := s.start(ctx)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	before := s.current
	s.current = next
	s.open.Add(1)
	s.mu.Unlock()
	if before != nil {
		s.retire(ctx, before)
	}
	c, err := s.join()
	if c == nil && err == nil {
		err = fmt.Errorf("the limits of the organization leave no room for a call in a chain")
	}
	return c, err
}

// join takes the current chain. It returns nil if another one must be opened.
func (s *chains) join() (*chain, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.current
	switch {
	case s.ended:
		return nil, fmt.Errorf("the session has ended")
	case c == nil || c.retired || c.actions >= c.most || time.Since(c.began) >= c.lasts:
		return nil, nil
	}
	c.actions++
	c.calls++
	return c, nil
}

// start opens a chain.
func (s *chains) start(ctx context.Context) (*chain, error) {
	name, metadata := s.describe()
	s.mu.Lock()
	if s.current != nil {
		s.current.mu.Lock()
		metadata["predecessor_chain_id"] = s.current.id
		s.current.mu.Unlock()
	}
	s.mu.Unlock()
	body := map[string]any{"name": name, "metadata": metadata}
	var answer struct {
		ID     string `json:"id"`
		Limits struct {
			AutoPause struct {
				Events  int64   `json:"max_events"`
				Seconds float64 `json:"max_duration_seconds"`
			} `json:"auto_pause"`
			Seconds *float64 `json:"chain_timeout_seconds"`
		} `json:"effective_limits"`
	}
	key := uuid.NewString()
	// Other calls wait for the chain, whatever becomes of this one.
	err := retry(context.WithoutCancel(ctx), func(ctx context.Context) error {
		return s.api.CallOnce(ctx, key, "/v1/chains", body, &answer)
	})
	if err != nil {
		return nil, err
	}
	// An older service does not say its limits.
	events, seconds := cmp.Or(answer.Limits.AutoPause.Events, defaultMaxEvents), cmp.Or(answer.Limits.AutoPause.Seconds, defaultMaxSeconds)
	if own := answer.Limits.Seconds; own != nil {
		seconds = min(seconds, *own)
	}
	return &chain{
		id: answer.ID, began: time.Now(), lasts: time.Duration(seconds * rolloverShare * float64(time.Second)),
		most: max(1, int64(float64(events)*rolloverShare)),
	}, nil
}

// leave ends a call's use of a chain.
func (s *chains) leave(ctx context.Context, c *chain) {
	s.mu.Lock()
	c.calls--
	over := c.retired && c.calls == 0
	s.mu.Unlock()
	if over {
		s.complete(ctx, c)
	}
}

// keep uses a chain for a call that begins: it stays open until the outcome is reported.
func (s *chains) keep(c *chain) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c.calls++
}

// retire lets a chain be completed when its last call has ended.
func (s *chains) retire(ctx context.Context, c *chain) {
	s.mu.Lock()
	over := !c.retired && c.calls == 0
	c.retired = true
	s.mu.Unlock()
	if over {
		s.complete(ctx, c)
	}
}

// report reports what became of a call that has begun, and leaves its chain. It is tried for as long as
// ctx lasts.
func (s *chains) report(ctx context.Context, p *permit, result outcome) {
	defer s.leave(ctx, p.chain)
	path := p.chain.path("/events/" + url.PathEscape(p.event) + "/outcome")
	for {
		err := retry(ctx, func(ctx context.Context) error {
			return s.api.Call(ctx, http.MethodPost, path, result, &struct{}{})
		})
		if err == nil {
			return
		}
		if !passing(err) || pause(ctx, longestBackoff) != nil {
			s.log("the outcome of a call was not recorded: %v", err)
			return
		}
	}
}

// complete completes a chain in the background, also if ctx has ended.
func (s *chains) complete(ctx context.Context, c *chain) {
	go func() {
		defer s.open.Done()
		ctx, done := context.WithTimeout(context.WithoutCancel(ctx), callTimeout)
		defer done()
		var answer struct {
			Receipt struct {
				Number string `json:"receipt_number"`
			} `json:"receipt"`
		}
		err := retry(ctx, func(ctx context.Context) error {
			return s.api.Call(ctx, http.MethodPost, c.path("/complete"), nil, &answer)
		})
		if err != nil {
			s.log("a chain was not completed: %v", err)
			return
		}
		s.log("the chain is completed: receipt %s", answer.Receipt.Number)
	}()
}

// end completes the chains when their last calls have ended, and waits for that.
func (s *chains) end(ctx context.Context) {
	s.mu.Lock()
	s.ended = true
	c, postponed := s.current, s.postponed
	s.mu.Unlock()
	for _, call := range postponed { // completing the chain cancels their approvals
		s.leave(ctx, call.chain)
	}
	if c != nil {
		s.retire(ctx, c)
	}
	s.open.Wait()
}
