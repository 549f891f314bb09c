package main

import (
	"context"
	"fmt"
	"net/http"
	"sync/atomic"
)

// crashWorker is one client's share of the load.
type crashWorker struct {
	*crashClient
	name    string
	journal *crashJournal
	shared  *journaledChain // all workers record in it
	stop    *atomic.Bool
	keys    int
}

// run opens chains and works on them until it is told to stop; the chain it is
// at then stays open.
func (w *crashWorker) run(ctx context.Context) error {
	defer w.close()
	for !w.stop.Load() {
		chain, err := w.openChain(ctx, w.nextKey())
		if err != nil {
			return err
		}
		if err := w.workOn(ctx, chain); err != nil {
			return err
		}
	}
	return nil
}

func (w *crashWorker) workOn(ctx context.Context, chain *journaledChain) error {
	for range 1 + w.random.IntN(4) {
		if w.stop.Load() {
			return nil
		}
		into := chain
		if w.random.IntN(4) == 0 {
			into = w.shared
		}
		event, err := w.recordEvent(ctx, into)
		if err != nil {
			return err
		}
		if w.random.IntN(3) > 0 {
			continue
		}
		if err := w.reportOutcome(ctx, into, event); err != nil {
			return err
		}
	}
	if w.random.IntN(20) == 0 {
		return nil // some chains are never completed
	}
	return w.complete(ctx, chain)
}

func (w *crashWorker) nextKey() string {
	w.keys++
	return fmt.Sprintf("%s-%d", w.name, w.keys)
}

func (w *crashWorker) openChain(ctx context.Context, key string) (*journaledChain, error) {
	opened, how, err := crashCall[openedChain](ctx, w.crashClient, crashRequest{
		method: http.MethodPost, path: "/v1/chains", idempotencyKey: key,
		body: map[string]any{"name": "crash", "external_chain_id": key, "metadata": map[string]any{"key": key}},
	})
	if err != nil {
		return nil, err
	}
	chain := &journaledChain{idempotencyKey: key, opened: opened, open: how}
	w.journal.enter(chain)
	return chain, nil
}

func (w *crashWorker) recordEvent(ctx context.Context, chain *journaledChain) (*journaledEvent, error) {
	event := &journaledEvent{idempotencyKey: w.nextKey(), step: w.keys}
	var err error
	event.acknowledged, event.record, err = crashCall[recordedEvent](ctx, w.crashClient, crashRequest{
		method: http.MethodPost, path: "/v1/chains/" + chain.opened.ID + "/events",
		body: map[string]any{
			"agent_name": w.name, "action_type": "tool_call", "action_name": "crash", "idempotency_key": event.idempotencyKey,
			"payload": map[string]any{"step": event.step},
		},
	})
	if err != nil {
		return nil, err
	}
	chain.enter(event)
	return event, nil
}

func (w *crashWorker) reportOutcome(ctx context.Context, chain *journaledChain, event *journaledEvent) error {
	var err error
	event.outcome, event.report, err = crashCall[reportedOutcome](ctx, w.crashClient, crashRequest{
		method: http.MethodPost, path: "/v1/chains/" + chain.opened.ID + "/events/" + event.acknowledged.EventID + "/outcome",
		body: map[string]any{"outcome": "succeeded", "detail": event.idempotencyKey},
	})
	return err
}

func (w *crashWorker) complete(ctx context.Context, chain *journaledChain) error {
	body := map[string]any{"outcome": "completed"}
	if w.random.IntN(8) == 0 {
		body = map[string]any{"outcome": "failed", "error": map[string]any{"type": "CrashError"}}
	}
	sealed, how, err := crashCall[sealedChain](ctx, w.crashClient, crashRequest{
		method: http.MethodPost, path: "/v1/chains/" + chain.opened.ID + "/complete", body: body,
	})
	chain.sealed = &sealedByClient{sealed, how}
	return err
}
