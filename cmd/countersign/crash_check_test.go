package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
)

// crashFigures is what a check counted.
type crashFigures struct {
	chains, events, outcomes, receipts int
	// alreadyDone counts the retries that found their request carried out.
	alreadyDone int
}

func (f *crashFigures) settled(how settlement, at time.Time) {
	if how.alreadyDone(at) {
		f.alreadyDone++
	}
}

// crashCheckJournal holds the store, as the API shows it, against what was
// acknowledged. Events are read for the chains given; everything else is
// compared as a whole.
func crashCheckJournal(ctx context.Context, c *crashClient, journal *crashJournal, withEvents []*journaledChain) (*crashFigures, error) {
	chains := journal.all()
	figures := &crashFigures{chains: len(chains)}
	errs := []error{crashCheckChains(ctx, c, chains), crashCheckReceipts(ctx, c, chains, figures)}
	for _, chain := range withEvents {
		figures.settled(chain.open, chain.opened.StartedAt)
		if chain.sealed != nil {
			figures.settled(chain.sealed.settlement, chain.sealed.CompletedAt)
		}
		errs = append(errs, crashCheckEvents(ctx, c, chain, figures))
	}
	return figures, errors.Join(errs...)
}

type crashChainView struct {
	ID           string `json:"id"`
	Key          string `json:"external_chain_id"`
	Status       string `json:"status"`
	TotalActions int64  `json:"total_actions"`
	ReceiptID    string `json:"receipt_id"`
}

// crashCheckChains makes sure that each key opened one chain, and that each chain
// stands where its client left it.
func crashCheckChains(ctx context.Context, c *crashClient, chains []*journaledChain) error {
	stored, err := crashList[crashChainView](ctx, c, "/v1/chains")
	if err != nil {
		return err
	}
	var expected []crashChainView
	for _, chain := range chains {
		view := crashChainView{ID: chain.opened.ID, Key: chain.idempotencyKey, Status: "active", TotalActions: int64(len(chain.events))}
		if sealed := chain.sealed; sealed != nil {
			view.Status, view.ReceiptID = sealed.Status, sealed.ReceiptID
			if sealed.TotalActions != view.TotalActions {
				return fmt.Errorf("chain %s was sealed with %d actions, %d were acknowledged", view.Key, sealed.TotalActions, view.TotalActions)
			}
		}
		expected = append(expected, view)
	}
	byID := func(a, b crashChainView) int { return cmp.Compare(a.ID, b.ID) }
	slices.SortFunc(stored, byID)
	slices.SortFunc(expected, byID)
	return crashDifference("chains", expected, stored)
}

// crashCheckReceipts makes sure that the numbers run from 1 without a gap and that
// the receipts are, byte for byte, those that were acknowledged: one for each
// chain that was completed.
func crashCheckReceipts(ctx context.Context, c *crashClient, chains []*journaledChain, figures *crashFigures) error {
	stored, err := crashList[crashRaw](ctx, c, "/v1/receipts")
	if err != nil {
		return err
	}
	slices.Reverse(stored) // now the oldest is first
	for i, text := range stored {
		var receipt struct {
			Number string `json:"receipt_number"`
		}
		if err := json.Unmarshal([]byte(text), &receipt); err != nil {
			return err
		}
		number, err := strconv.Atoi(receipt.Number[strings.LastIndex(receipt.Number, "-")+1:])
		if err != nil || number != i+1 {
			return fmt.Errorf("receipt %d of %d has the number %q", i+1, len(stored), receipt.Number)
		}
	}
	var expected []crashRaw
	for _, chain := range chains {
		if chain.sealed != nil {
			expected = append(expected, chain.sealed.Receipt)
		}
	}
	figures.receipts = len(stored)
	slices.Sort(stored)
	slices.Sort(expected)
	return crashDifference("receipts", expected, stored)
}

type crashEventView struct {
	ID         string          `json:"id"`
	ChainID    string          `json:"chain_id"`
	Sequence   int64           `json:"sequence"`
	Key        string          `json:"idempotency_key"`
	Decision   string          `json:"policy_decision"`
	Payload    crashPayload    `json:"payload"`
	Outcome    reportedOutcome `json:"outcome"` // zero for none
	RecordedAt time.Time       `json:"recorded_at"`
}

type crashPayload struct {
	Step int `json:"step"`
}

// crashCheckEvents makes sure that each key recorded one event, and that the
// sequence runs from 1 without a gap.
func crashCheckEvents(ctx context.Context, c *crashClient, chain *journaledChain, figures *crashFigures) error {
	stored, err := crashList[crashEventView](ctx, c, "/v1/chains/"+chain.opened.ID+"/events")
	if err != nil {
		return err
	}
	journaled := slices.SortedFunc(slices.Values(chain.events), func(a, b *journaledEvent) int {
		return cmp.Compare(a.acknowledged.Sequence, b.acknowledged.Sequence)
	})
	var expected []crashEventView
	for i, event := range journaled {
		expected = append(expected, crashEventView{
			ID: event.acknowledged.EventID, ChainID: event.acknowledged.ChainID, Sequence: int64(i + 1),
			Key: event.idempotencyKey, Decision: event.acknowledged.Decision, Payload: crashPayload{event.step}, Outcome: event.outcome,
		})
		if i < len(stored) {
			expected[i].RecordedAt = stored[i].RecordedAt // not part of the acknowledgement
			figures.settled(event.record, stored[i].RecordedAt)
		}
		if event.outcome != (reportedOutcome{}) {
			figures.outcomes++
			figures.settled(event.report, event.outcome.RecordedAt)
		}
	}
	figures.events += len(stored)
	return crashDifference("events of chain "+chain.idempotencyKey, expected, stored)
}

// crashList reads every page of a list.
func crashList[T any](ctx context.Context, c *crashClient, path string) ([]T, error) {
	var all []T
	for cursor := ""; ; {
		query := url.Values{"limit": {"200"}}
		if cursor != "" {
			query.Set("cursor", cursor)
		}
		page, _, err := crashCallOnce[struct {
			Data []T    `json:"data"`
			Next string `json:"next_cursor"`
		}](ctx, c, crashRequest{method: http.MethodGet, path: path + "?" + query.Encode()})
		if err != nil {
			return nil, err
		}
		all = append(all, page.Data...)
		if page.Next == "" {
			return all, nil
		}
		cursor = page.Next
	}
}

func crashDifference[T comparable](what string, expected, stored []T) error {
	if slices.Equal(expected, stored) {
		return nil
	}
	return fmt.Errorf("%s: acknowledged (-) and stored (+) differ:\n%s", what, gocmp.Diff(expected, stored))
}
