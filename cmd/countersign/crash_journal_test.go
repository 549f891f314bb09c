package main

import (
	"slices"
	"sync"
	"time"
)

// crashJournal is what the servers acknowledged, as their clients remember it.
// Every request is settled before the journal is held against the store, so the
// two must be equal: nothing lost, nothing twice, nothing more.
type crashJournal struct {
	mu     sync.Mutex
	chains []*journaledChain
}

// journaledChain is one chain. Several clients may record in it.
type journaledChain struct {
	idempotencyKey string

	mu     sync.Mutex
	opened openedChain
	open   settlement
	events []*journaledEvent
	sealed *sealedByClient
}

type journaledEvent struct {
	idempotencyKey string
	step           int
	acknowledged   recordedEvent
	record         settlement
	outcome        reportedOutcome // zero for none
	report         settlement
}

type sealedByClient struct {
	sealedChain
	settlement
}

// settlement is how a request came to its answer.
type settlement struct {
	attempts int
	sent     time.Time // the attempt that was answered
}

// alreadyDone reports whether the answer was about what an earlier attempt had
// done: it happened before the last one was sent. Servers tell milliseconds.
func (s settlement) alreadyDone(at time.Time) bool {
	return s.attempts > 1 && at.Before(s.sent.Truncate(time.Millisecond))
}

// The parts of answers that stay the same however often a request is sent.

type openedChain struct {
	ID        string    `json:"id"`
	StartedAt time.Time `json:"started_at"`
}

type recordedEvent struct {
	EventID  string `json:"event_id"`
	ChainID  string `json:"chain_id"`
	Sequence int64  `json:"sequence"`
	Decision string `json:"policy_decision"`
}

type reportedOutcome struct {
	Outcome    string    `json:"outcome"`
	Detail     string    `json:"detail"`
	Position   int64     `json:"position"`
	RecordedAt time.Time `json:"recorded_at"`
}

type sealedChain struct {
	Status       string    `json:"status"`
	TotalActions int64     `json:"total_actions"`
	CompletedAt  time.Time `json:"completed_at"`
	ReceiptID    string    `json:"receipt_id"`
	Receipt      crashRaw  `json:"receipt"`
}

// crashRaw is a member's own bytes, comparable.
type crashRaw string

func (r *crashRaw) UnmarshalJSON(text []byte) error {
	*r = crashRaw(text)
	return nil
}

func (j *crashJournal) enter(chain *journaledChain) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.chains = append(j.chains, chain)
}

func (j *crashJournal) all() []*journaledChain {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Clone(j.chains)
}

func (c *journaledChain) enter(event *journaledEvent) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.events = append(c.events, event)
}
