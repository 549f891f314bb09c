package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"countersign/internal/cli"
	"countersign/internal/fault"
)

const (
	// leaseTime is how long an allow is valid, from the moment at which its request was sent.
	leaseTime = time.Second
	// clockTolerance is how far the two clocks may disagree about the age of an allow.
	clockTolerance = 250 * time.Millisecond
	// maxLateAnswers is how many allows in a row may arrive too late.
	maxLateAnswers = 3

	attemptTimeout = 3 * time.Second
	callTimeout    = 5 * time.Second // of all attempts
	firstBackoff   = 100 * time.Millisecond
	longestBackoff = 5 * time.Second
	// pollTime is how long the service holds a request for a decision, in seconds.
	pollTime = 20
	// confirmTime is how long the confirmation of an approved call is tried.
	confirmTime = 10 * time.Minute
)

// governor has calls decided by the service. It is safe for concurrent use.
type governor struct {
	api      *cli.Client
	agent    func(*toolCall) string
	patience time.Duration // of a call that needs approval; 0 for that of its client
	// newest is the highest number of an audit log entry that an answer has named. An allow that is
	// older than a stop may arrive after it.
	newest *atomic.Int64
	clock  func() time.Time
}

// permit lets one call begin, for a second or until the service has said something newer.
type permit struct {
	chain  *chain
	event  string // its id
	sent   time.Time
	number int64         // of the answer, as in newest
	newest *atomic.Int64 // the governor's
	clock  func() time.Time
}

// valid reports whether the call may begin now. The monotonic clock stops on some systems
// while the machine sleeps, and the other one can be set, so both must agree.
func (p *permit) valid() bool {
	if p.number < p.newest.Load() {
		return false
	}
	now := p.clock()
	elapsed := now.Sub(p.sent)
	byWall := now.Round(0).Sub(p.sent.Round(0))
	return 0 <= elapsed && elapsed < leaseTime && byWall < leaseTime && (elapsed-byWall).Abs() <= clockTolerance
}

// decision is what the gateway reads of an answer to an action or of an approval's decision.
type decision struct {
	Decision    string `json:"policy_decision"`
	Policy      string `json:"policy_name"`
	Source      string `json:"decision_source"`
	Reason      string `json:"decision_reason"`
	PauseReason string `json:"pause_reason"`
	Remediation string `json:"remediation"`
	DocsURL     string `json:"docs_url"`
	KillSwitch  bool   `json:"kill_switch_active"`
	EventID     string `json:"event_id"`
	ChainID     string `json:"chain_id"`
	ApprovalID  string `json:"approval_id"`
	ActNumber   int64  `json:"act_number"`
}

// denied explains a denial to the model, and to the person who reads along.
func (d *decision) denied(tool string) error {
	text := fmt.Sprintf("the call of %q was denied", tool)
	switch {
	case d.KillSwitch:
		text += ": the kill switch is active"
	case d.Policy != "" && d.Source != "human_approval":
		text += fmt.Sprintf(" by the policy %q", d.Policy)
	}
	reason := d.PauseReason
	if reason == "" {
		reason = d.Reason
	}
	if reason != "" {
		text += ": " + strings.TrimSuffix(reason, ".")
	}
	if d.Remediation != "" {
		text += ". " + strings.TrimSuffix(d.Remediation, ".")
	}
	if d.DocsURL != "" {
		text += " (see " + d.DocsURL + ")"
	}
	return errors.New(text)
}

// notCarriedOut explains why a call was not carried out although nobody has denied it.
func notCarriedOut(tool string, err error) error {
	var refused *cli.APIError
	if errors.As(err, &refused) && refused.Status == http.StatusRequestEntityTooLarge {
		err = fmt.Errorf("its arguments are too large to be recorded (%w); pass less, or in several calls", err)
	}
	return fmt.Errorf("the call of %q was not carried out: %w", tool, err)
}

// wait is a wait for a person's decision.
type wait struct {
	tool string
	url  string // the console's page, for those who can sign in
}

// action is a call as it is recorded. Its key makes asking again harmless.
type action struct {
	Agent string          `json:"agent_name"`
	Type  string          `json:"action_type"`
	Tool  string          `json:"action_name"`
	Input json.RawMessage `json:"payload"`
	Key   string          `json:"idempotency_key"`
}

// decide has a call decided, waits for a person if it must be approved, and then begins it. begin gets a
// valid permit, and returns false if it was too late to use it; then the service is asked again. waiting
// is called when a wait begins. The error says why the call was not begun.
func (g *governor) decide(ctx context.Context, chains *chains, call *toolCall, waiting func(wait), begin func(*permit) bool) error {
	act := &action{g.agent(call), "tool_call", call.tool, call.payload.Bytes(), uuid.NewString()}
	chain, err := chains.resume(act), error(nil)
	resumed := chain != nil
	if !resumed {
		chain, err = chains.take(ctx)
	}
	if err != nil {
		return notCarriedOut(call.tool, err)
	}
	defer func() { chains.leave(ctx, chain) }()
	late, approved := 0, time.Time{} // approved is zero until a person has decided
	awaited := ""                    // the last approval
	replaced := false                // the chain, by another one
	for {
		answer, sent, err := g.record(ctx, chain, act)
		if sealed(err) && !replaced {
			// Somebody else has completed the chain: the session goes on in another one.
			replaced = true
			chains.retire(ctx, chain)
			next, failed := chains.take(ctx)
			if failed == nil {
				chains.leave(ctx, chain)
				chain = next
				continue
			}
			err = failed
		}
		if err != nil {
			// What a person has approved is worth waiting for, but not for ever.
			if approved.IsZero() || !passing(err) || time.Since(approved) > confirmTime || pause(ctx, longestBackoff) != nil {
				if resumed && passing(err) { // its approval stays, and the client may repeat it
					chains.postpone(chain, act)
				}
				return notCarriedOut(call.tool, err)
			}
			continue
		}
		switch answer.Decision {
		case "allow", "allow_with_flag":
			p := &permit{chain, answer.EventID, sent, answer.ActNumber, g.newest, g.clock}
			reason := "the answers of the service come too late"
			if p.valid() {
				if begin(p) {
					return nil
				}
				reason = "the MCP server takes too long to accept it"
			}
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if late++; late == maxLateAnswers {
				if resumed {
					chains.postpone(chain, act)
				}
				return notCarriedOut(call.tool, errors.New(reason))
			}
		case "require_approval":
			if answer.ApprovalID == awaited {
				_ = pause(ctx, time.Second) // nothing has changed; await sees that ctx has ended
			} else {
				waiting(wait{call.tool, g.pageOf(answer)})
			}
			awaited = answer.ApprovalID
			err := g.await(ctx, answer.ApprovalID)
			if errors.Is(err, errUndecided) && chains.postpone(chain, act) {
				return notCarriedOut(call.tool, fmt.Errorf("a person must approve it first, at %s. Call it again with the same arguments, now to wait or later", g.pageOf(answer)))
			}
			if err != nil {
				return notCarriedOut(call.tool, err)
			}
			approved = time.Now()
		default:
			return answer.denied(call.tool)
		}
	}
}

// record asks the service what may happen now, and records the action the first time. It does not end
// with ctx: an approval of which nobody knows could not be cancelled.
func (g *governor) record(ctx context.Context, chain *chain, act *action) (answer decision, sent time.Time, err error) {
	err = retry(context.WithoutCancel(ctx), func(ctx context.Context) error {
		answer, sent = decision{}, g.clock()
		return g.api.Call(ctx, http.MethodPost, chain.path("/events"), act, &answer)
	})
	if err == nil {
		chain.note(&answer)
		g.note(answer.ActNumber)
	}
	return answer, sent, err
}

// note remembers the number of an answer, whatever it says: a denial may be what a stop has led to.
func (g *governor) note(number int64) {
	for {
		newest := g.newest.Load()
		if number <= newest || g.newest.CompareAndSwap(newest, number) {
			return
		}
	}
}

// pageOf is where the console has an approval decided.
func (g *governor) pageOf(d decision) string {
	return g.api.Base + "/approvals/" + url.PathEscape(d.ApprovalID)
}

var errUndecided = errors.New("nobody has decided in time")

// await returns when an approval is no longer pending. It waits for the service while that cannot be
// reached. If ctx ends first, the approval is cancelled: nobody is to decide it in vain. If g.patience ends
// first, the error is errUndecided.
func (g *governor) await(ctx context.Context, id string) error {
	path := "/v1/approvals/" + url.PathEscape(id)
	backoff := firstBackoff
	client := ctx
	if g.patience > 0 {
		var done context.CancelFunc
		ctx, done = context.WithTimeout(ctx, g.patience)
		defer done()
	}
	for {
		var approval struct {
			Status string `json:"status"`
		}
		begun := time.Now()
		err := g.api.Call(ctx, http.MethodGet, fmt.Sprintf("%s?wait=%d", path, pollTime), nil, &approval)
		switch {
		case client.Err() != nil:
			g.cancel(ctx, path)
			return errors.New("the client gave it up before anybody had decided")
		case ctx.Err() != nil:
			return errUndecided
		case err != nil && !passing(err):
			return err
		case err != nil:
			backoff = min(2*backoff, longestBackoff)
		case approval.Status != "pending" && approval.Status != "escalated":
			return nil
		case time.Since(begun) > time.Second:
			backoff = firstBackoff
			continue // the service held the request
		}
		_ = pause(ctx, backoff) // the next round sees that ctx has ended
	}
}

// cancel cancels an approval, although ctx has ended.
func (g *governor) cancel(ctx context.Context, path string) {
	ctx, done := context.WithTimeout(context.WithoutCancel(ctx), callTimeout)
	defer done()
	body := map[string]string{"comment": "the caller has given it up"}
	// If it fails, the approval runs out. It releases nothing, because the call is over.
	_ = retry(ctx, func(ctx context.Context) error {
		return g.api.Call(ctx, http.MethodPost, path+"/cancel", body, &struct{}{})
	})
}

// retry repeats a request until it succeeds, fails for good, or callTimeout has passed.
func retry(ctx context.Context, request func(context.Context) error) error {
	deadline, backoff := time.Now().Add(callTimeout), firstBackoff
	for {
		attempt, done := context.WithTimeout(ctx, min(attemptTimeout, time.Until(deadline)))
		err := request(attempt)
		done()
		if err == nil || !passing(err) || time.Now().Add(backoff).After(deadline) || pause(ctx, backoff) != nil {
			return err
		}
		backoff = min(2*backoff, longestBackoff)
	}
}

// passing reports whether the same request may succeed later.
func passing(err error) bool {
	var refused *cli.APIError
	if !errors.As(err, &refused) {
		return true // no answer
	}
	return refused.Status >= http.StatusInternalServerError || refused.Status == http.StatusTooManyRequests
}

// sealed reports whether an error says that a chain was completed.
func sealed(err error) bool {
	var refused *cli.APIError
	return errors.As(err, &refused) && refused.Code == fault.CodeChainSealed
}

func pause(ctx context.Context, length time.Duration) error {
	timer := time.NewTimer(length)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}
