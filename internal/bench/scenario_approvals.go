package bench

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	"countersign/internal/ledger"
	"countersign/internal/service"
)

const waitSeconds = 60

// measureApprovals times the way from a reviewer's request to a waiting client's
// answer, with many clients waiting on every replica.
func measureApprovals(ctx context.Context, b *bench) (*Scenario, error) {
	s := &Scenario{
		Title: fmt.Sprintf("approvals with %d waiting clients", b.Waiters),
		Notes: []string{
			"from the moment before a reviewer's request is sent to the moment at which the waiting client has its answer",
			"on PostgreSQL half of the clients wait at each of two replicas, and reviewers decide at both in turn",
		},
	}
	err := b.onEachService(ctx, withReviewer(b.Waiters), func(t *target) error {
		m, err := b.timeApprovals(ctx, t)
		if err != nil {
			return err
		}
		s.Rows = append(s.Rows, summarize(t.name, []*Measurement{m}))
		s.Bars = append(s.Bars, atMost("p99 of a decision's way to its client on "+t.name, 50, float64(m.P99)/float64(time.Millisecond), "ms"))
		return nil
	})
	return s, err
}

func (b *bench) timeApprovals(ctx context.Context, t *target) (_ *Measurement, err error) {
	addresses := []string{t.server.address}
	if t.name == postgresName {
		replica, err := b.launch(ctx, t.name+", second replica", t.environment, "serve", "--data", t.place.dir, "--listen", "127.0.0.1:0", "--public-rate", "0")
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, replica.stop()) }()
		addresses = append(addresses, replica.address)
	}
	return (&waitingRoom{target: t, addresses: addresses, clients: b.Waiters}).run(ctx)
}

// waitersOfKey is how many clients wait under one key.
const waitersOfKey = 100

// withReviewer is a store with a key that may decide, and keys under which clients wait.
func withReviewer(waiters int) stock {
	return func(ctx context.Context, r *records) (*filled, error) {
		var f filled
		key := func(name string) (string, error) {
			made, err := r.service.Operator().CreateKey(ctx, r.org.Slug, &service.KeyRequest{Name: name, Role: ledger.RoleMember})
			if err != nil {
				return "", err
			}
			return made.Text.Reveal(), nil
		}
		for i := 0; i < waiters; i += waitersOfKey {
			text, err := key(fmt.Sprint("waiter ", i))
			if err != nil {
				return nil, err
			}
			f.waiters = append(f.waiters, text)
		}
		var err error
		f.reviewer, err = key("reviewer")
		return &f, err
	}
}

// waitingRoom is clients that wait, each for an approval of its own.
type waitingRoom struct {
	target    *target
	addresses []string
	clients   int
	client    *http.Client
}

func (w *waitingRoom) run(ctx context.Context) (*Measurement, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	transport := &http.Transport{MaxIdleConnsPerHost: w.clients}
	defer transport.CloseIdleConnections()
	w.client = &http.Client{Transport: transport}
	approvals, err := w.ask(ctx)
	if err != nil {
		return nil, err
	}
	answered := make([]time.Time, len(approvals))
	errs := make([]error, len(approvals))
	var waiting sync.WaitGroup
	for i, id := range approvals {
		waiting.Go(func() {
			errs[i] = w.wait(ctx, i, id)
			answered[i] = time.Now()
		})
	}
	pause(ctx, time.Duration(w.clients)*time.Millisecond) // until all of them wait
	clicked, err := w.decide(ctx, approvals)
	if err != nil {
		cancel() // or they would wait for ever
	}
	waiting.Wait()
	if err := cmp.Or(err, errors.Join(errs...)); err != nil {
		return nil, err
	}
	times := make([]time.Duration, len(approvals))
	for i := range approvals {
		times[i] = answered[i].Sub(clicked[i])
	}
	slices.Sort(times)
	last := slices.MaxFunc(answered, time.Time.Compare)
	return &Measurement{
		Requests: len(times), Elapsed: last.Sub(clicked[0]), P50: percentile(times, 50), P99: percentile(times, 99),
	}, nil
}

// wait asks about a client's approval until it is given: many take longer to decide than
// one wait may last.
func (w *waitingRoom) wait(ctx context.Context, client int, id string) error {
	address, apiKey := w.addresses[client%len(w.addresses)], w.target.filled.waiters[client/waitersOfKey]
	path := fmt.Sprintf("/v1/approvals/%s?wait=%d", id, waitSeconds)
	for {
		body, err := w.send(ctx, address, http.MethodGet, path, apiKey, "")
		switch {
		case err != nil:
			return err
		case bytes.Contains(body, []byte(`"status":"approved"`)):
			return nil
		case !bytes.Contains(body, []byte(`"status":"pending"`)):
			return fmt.Errorf("%w: %s", errUnexpected, body)
		}
	}
}

// ask opens a chain and records the payments that people must decide.
func (w *waitingRoom) ask(ctx context.Context) ([]string, error) {
	const perChain = 500
	var ids []string
	var events string
	for i := range w.clients {
		if i%perChain == 0 {
			chain, err := w.send(ctx, w.addresses[0], http.MethodPost, "/v1/chains", w.target.apiKey, chainBody)
			if err != nil {
				return nil, err
			}
			id, err := idIn(chain, idMember)
			if err != nil {
				return nil, err
			}
			events = "/v1/chains/" + id + "/events"
		}
		body := `{"agent_name":"payer","action_type":"tool_call","action_name":"pay_invoice","payload":{"amount_usd":6000}}`
		decision, err := w.send(ctx, w.addresses[0], http.MethodPost, events, w.target.apiKey, body)
		if err != nil {
			return nil, err
		}
		id, err := idIn(decision, `"approval_id":"`)
		if err != nil {
			return nil, err
		}
		ids = append(ids, id)
	}
	return ids, nil
}

func (w *waitingRoom) decide(ctx context.Context, approvals []string) ([]time.Time, error) {
	clicked := make([]time.Time, len(approvals))
	for i, id := range approvals {
		clicked[i] = time.Now()
		// Not where its client waits: the word has to cross.
		address := w.addresses[(i+1)%len(w.addresses)]
		if _, err := w.send(ctx, address, http.MethodPost, "/v1/approvals/"+id+"/approve", w.target.filled.reviewer, ""); err != nil {
			return clicked, err
		}
	}
	return clicked, nil
}

func (w *waitingRoom) send(ctx context.Context, address, method, path, apiKey, body string) ([]byte, error) {
	answer, err := call(ctx, w.client, address, method, path, apiKey, body)
	if err != nil {
		return nil, err
	}
	return answer.Body, nil
}
