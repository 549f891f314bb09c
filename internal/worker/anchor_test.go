package worker_test

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"countersign/internal/ledger"
	"countersign/internal/notify"
	"countersign/internal/service"
	"countersign/internal/servicetest"
	"countersign/internal/store"
	"countersign/internal/worker"
)

// anchored returns the anchors of an approval's decision, as an admin sees them.
func (w *world) anchored(id ledger.ApprovalID) (tsa, opentimestamps ledger.AnchorFinding) {
	w.t.Helper()
	v, err := w.service.VerifyApproval(w.t.Context(), w.admin, id)
	if err != nil {
		w.t.Fatal(err)
	}
	return v.TSA, v.OpenTimestamp
}

func (w *world) wantTSA(id ledger.ApprovalID, standing ledger.AnchorStanding, reason string) {
	w.t.Helper()
	if got, _ := w.anchored(id); got != (ledger.AnchorFinding{Standing: standing, Reason: reason}) {
		w.t.Errorf("the token is %+v, want %s %q", got, standing, reason)
	}
}

func (w *world) wantProof(id ledger.ApprovalID, standing ledger.AnchorStanding, reason string) {
	w.t.Helper()
	if _, got := w.anchored(id); got != (ledger.AnchorFinding{Standing: standing, Reason: reason}) {
		w.t.Errorf("the proof is %+v, want %s %q", got, standing, reason)
	}
}

// decided returns a decided approval whose deadline has passed.
func (w *world) decided() ledger.ApprovalID {
	w.t.Helper()
	id := w.ask()
	w.approve(id)
	return id
}

// A decision gets a token of the timestamp authority once.
func TestTokenOfADecision(t *testing.T) {
	onEachStore(t, func(t *testing.T, open func() store.Store) {
		w := newWorld(t, open(), ledger.MethodTSA)
		w.anchors = worker.Anchoring{Authority: w.stamper()}
		id := w.decided()
		w.wantTSA(id, ledger.NotAnchored, "")
		w.run(w.worker(w.service, nil, nil))
		w.wantTSA(id, ledger.AnchorVerified, "")
		w.wantProof(id, ledger.NotAnchored, "")
		w.queue(1, 0) // the deadline job
		if n := w.meter.get("tsa verified"); n != 1 {
			t.Errorf("%d tokens are counted", n)
		}
	})
}

// lateAuthority answers just before the time of the job is up.
type lateAuthority struct {
	worker.Authority
	end context.CancelFunc
}

func (l lateAuthority) Stamp(ctx context.Context, digest [32]byte, nonce uint64) ([]byte, error) {
	defer l.end()
	return l.Authority.Stamp(ctx, digest, nonce)
}

// lateCalendars answer just before the time of the job is up.
type lateCalendars struct {
	worker.Calendars
	end context.CancelFunc
}

func (l lateCalendars) Stamp(ctx context.Context, digest [32]byte, nonce [16]byte) ([]byte, error) {
	defer l.end()
	return l.Calendars.Stamp(ctx, digest, nonce)
}

// What an authority or a calendar has answered is stored, also if the time of the job is up right then:
// neither is asked again.
func TestAnswersAtTheLastMoment(t *testing.T) {
	t.Run("authority", func(t *testing.T) {
		onEachStore(t, func(t *testing.T, open func() store.Store) {
			w := newWorld(t, open(), ledger.MethodTSA)
			authority, id := w.stamper(), w.decided()
			ctx, end := context.WithCancel(t.Context())
			w.anchors = worker.Anchoring{Authority: lateAuthority{authority, end}}
			w.runOnce(ctx)
			w.wantTSA(id, ledger.AnchorVerified, "")
			w.run(w.worker(w.service, nil, nil))
			if n := authority.server.Requests(); n != 1 {
				t.Errorf("the authority was asked %d times", n)
			}
		})
	})
	t.Run("calendars", func(t *testing.T) {
		onEachStore(t, func(t *testing.T, open func() store.Store) {
			w := newWorld(t, open(), ledger.MethodOpenTimestamps)
			calendar, id := newCalendar(t), w.decided()
			ctx, end := context.WithCancel(t.Context())
			w.anchors = worker.Anchoring{Calendars: lateCalendars{calendar, end}, Bitcoin: bitcoin(w.clock, nil)}
			w.runOnce(ctx)
			w.wantProof(id, ledger.AnchorPending, "")
			w.run(w.worker(w.service, nil, nil))
			if calendar.submitted != 1 {
				t.Errorf("the calendar was asked %d times", calendar.submitted)
			}
		})
	})
}

func (w *world) runOnce(ctx context.Context) {
	w.t.Helper()
	if _, err := w.worker(w.service, nil, nil).RunOnce(ctx); err != nil {
		w.t.Fatal(err)
	}
}

// An anchor waits as long as the authority is unreachable, across restarts, and the log contains no
// address.
func TestAuthorityOutOfReachForDays(t *testing.T) {
	onEachStore(t, func(t *testing.T, open func() store.Store) {
		w := newWorld(t, open(), ledger.MethodTSA)
		authority := w.stamper()
		authority.server.Refuse(http.StatusServiceUnavailable)
		w.anchors = worker.Anchoring{Authority: authority}
		id := w.decided()
		running := w.worker(w.service, nil, nil)
		for range 3 * notify.MaxAttempts {
			w.run(running)
			w.wantTSA(id, ledger.AnchorPending, "unavailable")
			w.clock.Advance(6 * time.Hour)
		}
		w.queue(1, 0) // the anchor; the deadline has long passed
		authority.server.Refuse(0)
		w.run(w.worker(w.serve(open()), nil, nil)) // after a restart
		w.wantTSA(id, ledger.AnchorVerified, "")
		w.queue(0, 0)
		if log := w.log.String(); strings.Contains(log, "planted-path") || !strings.Contains(log, "unavailable") {
			t.Errorf("the log says\n%s", log)
		}
	})
}

// An anchor that the authority keeps refusing is given up after a few attempts and marked as
// failed.
func TestAuthorityThatRefuses(t *testing.T) {
	onEachStore(t, func(t *testing.T, open func() store.Store) {
		w := newWorld(t, open(), ledger.MethodTSA)
		authority := w.stamper()
		authority.server.Refuse(http.StatusForbidden)
		w.anchors = worker.Anchoring{Authority: authority}
		id := w.decided()
		running := w.worker(w.service, nil, nil)
		w.run(running)
		w.wantTSA(id, ledger.AnchorPending, "refused")
		for range 5 {
			w.clock.Advance(time.Hour)
			w.run(running)
		}
		w.wantTSA(id, ledger.AnchorFailed, "refused")
		if n := authority.server.Requests(); n != 4 {
			t.Errorf("it was asked %d times", n)
		}
		w.queue(0, 1) // the deadline has passed
		if pending, failed := w.meter.get("tsa pending"), w.meter.get("tsa failed"); pending != 1 || failed != 1 {
			t.Errorf("%d pending and %d failed are counted", pending, failed)
		}
	})
}

// A decision is submitted to the calendars once, and its proof is verified when the block is
// confirmed and block headers are available.
//
//countersign:race
func TestProofOfADecision(t *testing.T) {
	onEachStore(t, func(t *testing.T, open func() store.Store) {
		w := newWorld(t, open(), ledger.MethodOpenTimestamps)
		calendar := newCalendar(t)
		w.anchors = worker.Anchoring{Calendars: calendar, Bitcoin: bitcoin(w.clock, nil)}
		id := w.decided()
		w.run(w.worker(w.service, nil, nil))
		w.wantProof(id, ledger.AnchorPending, "")
		w.clock.Advance(31 * time.Minute)
		restarted := w.worker(w.serve(open()), nil, nil)
		w.run(restarted)
		w.wantProof(id, ledger.AnchorPending, "")
		if n := w.meter.get("anchor retried"); n != 0 {
			t.Errorf("waiting counts as %d failures", n)
		}
		calendar.confirm(7)
		w.clock.Advance(31 * time.Minute)
		w.run(restarted)
		w.wantProof(id, ledger.AnchorPending, "no_header_source")

		w.anchors.Bitcoin = bitcoin(w.clock, calendar)
		w.clock.Advance(29 * time.Minute)
		configured := w.worker(w.serve(open()), nil, nil)
		w.run(configured)
		w.wantProof(id, ledger.AnchorPending, "no_header_source") // not due yet
		w.clock.Advance(2 * time.Minute)
		w.run(configured)
		w.wantProof(id, ledger.AnchorVerified, "")
		w.queue(1, 0)
		if calendar.submitted != 1 {
			t.Errorf("it was stamped %d times", calendar.submitted)
		}
		if pending, verified := w.meter.get("opentimestamps pending"), w.meter.get("opentimestamps verified"); pending != 1 || verified != 1 {
			t.Errorf("%d pending and %d verified are counted", pending, verified)
		}
	})
}

// A proof that leads to a block that is not Bitcoin's is marked as failed.
func TestProofOfAnotherBlock(t *testing.T) {
	onEachStore(t, func(t *testing.T, open func() store.Store) {
		w := newWorld(t, open(), ledger.MethodOpenTimestamps)
		calendar := newCalendar(t)
		w.anchors = worker.Anchoring{Calendars: calendar, Bitcoin: bitcoin(w.clock, nil)}
		id := w.decided()
		calendar.confirm(7)
		running := w.worker(w.service, nil, nil)
		for range 2 {
			w.run(running)
			w.clock.Advance(31 * time.Minute)
		}
		calendar.replace(7)
		w.anchors.Bitcoin = bitcoin(w.clock, calendar)
		w.run(w.worker(w.service, nil, nil))
		w.wantProof(id, ledger.AnchorFailed, "wrong_block")
		w.queue(1, 1)
	})
}

// An anchor whose method is no longer configured stays pending and says so.
func TestMethodThatIsConfiguredNoMore(t *testing.T) {
	onEachStore(t, func(t *testing.T, open func() store.Store) {
		w := newWorld(t, open(), ledger.MethodTSA, ledger.MethodOpenTimestamps)
		id := w.decided()
		w.run(w.worker(w.service, nil, nil))
		w.wantTSA(id, ledger.AnchorPending, "not_configured")
		w.wantProof(id, ledger.AnchorPending, "not_configured")
		w.queue(3, 0)
	})
}

// seal completes a chain and returns its receipt.
func (w *world) seal() ledger.ReceiptID {
	w.t.Helper()
	request, err := ledger.ParseChainRequest(parse(w.t, `{"name":"refunds"}`))
	if err != nil {
		w.t.Fatal(err)
	}
	opened, err := w.service.OpenChain(w.t.Context(), w.agent, request, "")
	if err != nil {
		w.t.Fatal(err)
	}
	completed, err := w.service.CompleteChain(w.t.Context(), w.agent, opened.ID, &ledger.Completion{})
	if err != nil {
		w.t.Fatal(err)
	}
	return *completed.State.Receipt
}

func (w *world) receiptTSA(id ledger.ReceiptID) ledger.AnchorStanding {
	w.t.Helper()
	v, err := w.service.VerifyReceipt(w.t.Context(), w.admin, id)
	if err != nil {
		w.t.Fatal(err)
	}
	return v.TSA.Standing
}

// The head of a ledger is anchored at most once an hour and only if it has changed, and covers all
// earlier receipts.
func TestHeadsAreAnchoredHourly(t *testing.T) {
	onEachStore(t, func(t *testing.T, open func() store.Store) {
		w := newWorld(t, open(), ledger.MethodTSA)
		authority := w.stamper()
		w.anchors = worker.Anchoring{Authority: authority}
		first := w.seal()
		second := w.seal()
		ticks := make(chan time.Time)
		running := w.worker(w.service, nil, ticks)
		running.Start()
		defer running.Stop(t.Context())
		servicetest.Eventually(w.t, "the head is anchored", func() bool { return w.receiptTSA(second) == ledger.AnchorVerified })
		if standing := w.receiptTSA(first); standing != ledger.AnchorVerified {
			t.Errorf("the receipt before the head is %s", standing)
		}
		third := w.seal()
		ticks <- w.clock.Now()
		ticks <- w.clock.Now()
		if standing := w.receiptTSA(third); standing != ledger.NotAnchored {
			t.Errorf("within the hour the new head is %s", standing)
		}
		w.clock.Advance(time.Hour)
		ticks <- w.clock.Now()
		servicetest.Eventually(w.t, "the new head is anchored", func() bool { return w.receiptTSA(third) == ledger.AnchorVerified })
		w.clock.Advance(time.Hour)
		ticks <- w.clock.Now()
		ticks <- w.clock.Now()
		running.Stop(t.Context())
		if n := authority.server.Requests(); n != 2 {
			t.Errorf("%d requests for two heads", n)
		}
	})
}

// The last use of a public link is recorded.
func TestUseOfTokensIsWrittenDown(t *testing.T) {
	onEachStore(t, func(t *testing.T, open func() store.Store) {
		w := newWorld(t, open())
		receipt := w.seal()
		_, text, err := w.service.IssueToken(t.Context(), w.admin, &service.TokenRequest{Artifact: ledger.ArtifactReceipt, ArtifactID: receipt.UUID}, "")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.service.VerifyToken(t.Context(), text.Reveal()); err != nil {
			t.Fatal(err)
		}
		running := w.worker(w.service, nil, nil)
		running.Start()
		defer running.Stop(t.Context())
		servicetest.Eventually(w.t, "the use is listed", func() bool {
			tokens, err := w.service.Tokens(t.Context(), w.admin, nil, 10)
			return err == nil && len(tokens) == 1 && tokens[0].LastUsedAt != nil && *tokens[0].LastUsedAt == ledger.TimeOf(w.clock.Now())
		})
	})
}
