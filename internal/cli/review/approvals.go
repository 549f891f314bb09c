package review

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"countersign/internal/cli"
	"countersign/internal/fault"
	"countersign/internal/ledger"
)

// ApprovalsCommands are the commands for approvals.
type ApprovalsCommands struct {
	List    approvalsListCommand `cmd:"" help:"List the approvals that wait for a person."`
	Approve approveCommand       `cmd:"" help:"Approve an action, after showing it."`
	Deny    denyCommand          `cmd:"" help:"Deny an action, after showing it."`
}

// matchedRule is a rule that applied, in the API's form.
type matchedRule struct {
	Name     string `json:"name"`
	Decision string `json:"decision"`
	Reason   string `json:"reason"`
}

// Approval is an approval in the API's form.
type Approval struct {
	ID            string          `json:"id"`
	Integrity     string          `json:"integrity"` // "failed" if only the id is returned
	ChainID       string          `json:"chain_id"`
	Chain         *ChainLine      `json:"-"` // set by LookUpChains
	AgentName     string          `json:"agent_name"`
	ActionType    string          `json:"action_type"`
	ActionName    string          `json:"action_name"`
	AmountUSD     *float64        `json:"amount_usd"`
	Payload       json.RawMessage `json:"payload"`
	PayloadSHA256 string          `json:"payload_sha256"`
	Unbound       []string        `json:"unbound"`
	Reason        string          `json:"reason"`
	PolicyName    *string         `json:"policy_name"`
	Matched       []matchedRule   `json:"matched_rules"`
	Approvers     []string        `json:"approvers"`
	Fallback      []string        `json:"fallback_approvers"` // not for agents
	EscalatedAt   *time.Time      `json:"escalated_at"`
	LastPolledAt  *time.Time      `json:"last_polled_at"` // not for agents
	Waiting       *bool           `json:"waiting"`        // not for agents, nor from older servers
	TwoPerson     bool            `json:"two_person"`
	Votes         int             `json:"votes"`
	Status        string          `json:"status"`
	RequestedAt   time.Time       `json:"requested_at"`
	ExpiresAt     time.Time       `json:"expires_at"`
	DecidedAt     *time.Time      `json:"decided_at"`
	Comment       *string         `json:"comment"`
	Reviewer      *struct {
		Name string `json:"name"`
	} `json:"reviewer"` // not for agents
	Voters []struct { // not for agents, nor from older servers
		Discounted *string `json:"discounted"`
		Reviewer   struct {
			Name string `json:"name"`
		} `json:"reviewer"`
	} `json:"voters"`
	DeniedBy *struct {
		PolicyName *string `json:"policy_name"`
		Reason     string  `json:"reason"`
	} `json:"denied_by"` // not from older servers
}

// ChainLine is what a reviewer needs to know about a chain.
type ChainLine struct {
	Name        string `json:"name"`
	Environment string `json:"environment"`

	tampered bool // it was changed or deleted outside the service
}

// Open reports whether the approval can still be decided.
func (a *Approval) Open() bool { return ledger.ApprovalStatus(a.Status).Open() }

// tampered reports whether the approval was changed outside the service.
func (a *Approval) tampered() bool { return a.Integrity == string(ledger.IntegrityFailed) }

// short returns enough of the id to distinguish approvals at a glance.
func (a *Approval) short() string { return a.ID[:min(len(a.ID), 8)] }

// LookUpChains sets the chains of approvals. It requests each chain once. A chain that was tampered with is
// marked, so that it does not hide the approvals of others.
func LookUpChains(ctx context.Context, c *cli.Client, known map[string]*ChainLine, list ...*Approval) error {
	for _, a := range list {
		if a.tampered() {
			continue
		}
		if known[a.ChainID] == nil {
			chain := new(ChainLine)
			err := c.Call(ctx, http.MethodGet, "/v1/chains/"+url.PathEscape(a.ChainID), nil, chain)
			var refused *cli.APIError
			if errors.As(err, &refused) && (refused.Code == fault.CodeEvidenceTampered || refused.Code == fault.CodeNotFound) {
				chain.tampered, err = true, nil
			}
			if err != nil {
				return err
			}
			known[a.ChainID] = chain
		}
		a.Chain = known[a.ChainID]
	}
	return nil
}

// readApprovals are approvals of the API. raw is the JSON of each.
type readApprovals struct {
	list []Approval
	raw  []json.RawMessage
	more bool // there are older ones, which were not read
}

// maxApprovals is how many approvals of a status are read.
const maxApprovals = 2000

// approvalsOf reads approvals with a status, or all if it is "", newest first.
func approvalsOf(ctx context.Context, c *cli.Client, status string, query url.Values) (read readApprovals, err error) {
	query = maps.Clone(query)
	if status != "" {
		query.Set("status", status)
	}
	read.list, read.raw, err = readList[Approval](ctx, c, "/v1/approvals", query, maxApprovals+1)
	if read.more = len(read.list) > maxApprovals; read.more {
		read.list, read.raw = read.list[:maxApprovals], read.raw[:maxApprovals]
	}
	return read, err
}

// waitingApprovals reads the approvals that can still be decided, oldest first.
func waitingApprovals(ctx context.Context, c *cli.Client, query url.Values) (waiting readApprovals, err error) {
	for _, status := range []ledger.ApprovalStatus{ledger.ApprovalEscalated, ledger.ApprovalPending} {
		part, err := approvalsOf(ctx, c, string(status), query)
		if err != nil {
			return readApprovals{}, err
		}
		waiting = readApprovals{append(part.list, waiting.list...), append(part.raw, waiting.raw...), part.more || waiting.more}
	}
	// An expired approval is listed as open until its timeout is recorded.
	for i := len(waiting.list) - 1; i >= 0; i-- {
		if a := &waiting.list[i]; !a.Open() && !a.tampered() {
			waiting.list, waiting.raw = slices.Delete(waiting.list, i, i+1), slices.Delete(waiting.raw, i, i+1)
		}
	}
	slices.Reverse(waiting.list)
	slices.Reverse(waiting.raw)
	return waiting, nil
}

const minPrefix = 4

var errTampered = errors.New("this approval or its chain was changed outside the service, and it cannot be decided: run countersign audit on the server")

// FindApproval returns the approval with an id or a prefix of one. Open approvals take precedence.
func FindApproval(ctx context.Context, c *cli.Client, text string) (*Approval, error) {
	text = strings.ToLower(strings.TrimSpace(text))
	if _, err := ledger.ParseID(text); err == nil {
		var found Approval
		return &found, c.Call(ctx, http.MethodGet, "/v1/approvals/"+text, nil, &found)
	}
	if len(text) < minPrefix || strings.Trim(text, "0123456789abcdef-") != "" {
		return nil, cli.Usage(fmt.Errorf("give an approval's id, or at least its first %d characters; countersign approvals list lists them", minPrefix))
	}
	others := func(a Approval) bool { return !strings.HasPrefix(a.ID, text) }
	read, err := waitingApprovals(ctx, c, url.Values{})
	list := slices.DeleteFunc(read.list, others)
	if err == nil && len(list) == 0 {
		read, err = approvalsOf(ctx, c, "", url.Values{})
		list = slices.DeleteFunc(read.list, others)
	}
	if err != nil {
		return nil, err
	}
	switch {
	case len(list) == 0 && read.more:
		return nil, cli.Inconclusive(fmt.Errorf("none of the newest %d approvals begins with that: give the whole id", maxApprovals))
	case len(list) == 0:
		return nil, cli.Inconclusive(errors.New("no approval begins with that; countersign approvals list lists the waiting ones"))
	case len(list) > 1:
		return nil, cli.Inconclusive(fmt.Errorf("%d approvals begin with that: give more of the id", len(list)))
	case list[0].tampered():
		return nil, errTampered
	}
	return &list[0], nil
}

// SendDecision sends a decision about exactly the payload that was shown.
func SendDecision(ctx context.Context, c *cli.Client, a *Approval, verb, comment, shown string) (*Approval, error) {
	body := map[string]string{"payload_sha256": shown}
	if comment != "" {
		body["comment"] = comment
	}
	var decided Approval
	err := c.Call(ctx, http.MethodPost, "/v1/approvals/"+a.ID+"/"+verb, body, &decided)
	return &decided, err
}
