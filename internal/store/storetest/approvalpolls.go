package storetest

import (
	"context"
	"math/rand/v2"
	"testing"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

var pollCases = []testCase{
	{name: "the last poll of an approval is remembered", run: remembersPolls},
	{name: "an earlier poll changes nothing", run: earlierPoll},
	{name: "no polls are no error", run: noPolls},
	{name: "a poll leaves its approval as it is", run: pollLeavesApproval},
	{name: "the latest poll of many replicas is remembered", run: latestPoll, concurrent: true},
}

func (w *world) polled(t *testing.T, ids ...ledger.ApprovalID) map[ledger.ApprovalID]ledger.Time {
	t.Helper()
	return must[map[ledger.ApprovalID]ledger.Time](t)(w.open(t).Polls(t.Context(), ids))
}

func (w *world) putPolls(t *testing.T, polls map[ledger.ApprovalID]ledger.Time) {
	t.Helper()
	if err := w.PutPolls(t.Context(), polls); err != nil {
		t.Fatalf("put polls: %v", err)
	}
}

func remembersPolls(t *testing.T, w *world) {
	one, two, never := w.approvalID(), w.approvalID(), w.approvalID()
	polls := map[ledger.ApprovalID]ledger.Time{one: w.now(), two: w.now()}
	w.putPolls(t, polls)
	assertEqual(t, "all", w.polled(t, one, never, two, one), polls)
	assertEqual(t, "one", w.polled(t, one), map[ledger.ApprovalID]ledger.Time{one: polls[one]})
	polls[one] = w.now()
	w.putPolls(t, map[ledger.ApprovalID]ledger.Time{one: polls[one]})
	assertEqual(t, "once more", w.polled(t, one, two), polls)
}

func earlierPoll(t *testing.T, w *world) {
	id, earlier, later := w.approvalID(), w.now(), w.now()
	w.putPolls(t, map[ledger.ApprovalID]ledger.Time{id: later})
	w.putPolls(t, map[ledger.ApprovalID]ledger.Time{id: earlier})
	assertEqual(t, "poll", w.polled(t, id), map[ledger.ApprovalID]ledger.Time{id: later})
}

func noPolls(t *testing.T, w *world) {
	w.putPolls(t, nil)
	assertEqual(t, "of none", w.polled(t), map[ledger.ApprovalID]ledger.Time{})
	assertEqual(t, "of one", w.polled(t, w.approvalID()), map[ledger.ApprovalID]ledger.Time{})
}

func pollLeavesApproval(t *testing.T, w *world) {
	record := w.ask(t, w.join(t), 1)[0]
	w.putPolls(t, map[ledger.ApprovalID]ledger.Time{record.ID: w.now()})
	assertEqual(t, "approval", must[*store.ApprovalRecord](t)(w.Approval(t.Context(), record.ID)), record)
}

func latestPoll(t *testing.T, w *world) {
	const workers, each, width = 9, 6, 5
	ids := make([]ledger.ApprovalID, width)
	for i := range ids {
		ids[i] = w.approvalID()
	}
	base := w.now()
	w.together(t, workers, func(ctx context.Context, s store.Store, worker int) error {
		for _, i := range rand.New(rand.NewPCG(7, uint64(worker))).Perm(each) {
			polls := make(map[ledger.ApprovalID]ledger.Time)
			for _, id := range ids {
				polls[id] = base + ledger.Time(i*workers+worker)
			}
			if err := s.PutPolls(ctx, polls); err != nil {
				return err
			}
		}
		return nil
	})
	for id, at := range w.polled(t, ids...) {
		if at != base+workers*each-1 {
			t.Errorf("the last poll of %v is %v, want %v", id, at, base+workers*each-1)
		}
	}
}
