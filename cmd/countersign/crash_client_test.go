package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"
)

// crashClient sends requests to whichever server is up, and each again, with the
// same key, until it is answered.
type crashClient struct {
	fleet  *crashFleet
	http   *http.Client
	key    string
	random *rand.Rand
}

func newCrashClient(fleet *crashFleet, key string, random *rand.Rand) *crashClient {
	// A transport of its own: a client has one connection to a server, and none
	// opened in advance that a stopping server would have to wait for.
	return &crashClient{
		fleet: fleet, key: key, random: random,
		http: &http.Client{Transport: &http.Transport{}, Timeout: 30 * time.Second},
	}
}

func (c *crashClient) close() { c.http.CloseIdleConnections() }

type crashRequest struct {
	method, path   string
	idempotencyKey string
	body           any
}

// crashRetryPause keeps a server that says it is unavailable from being asked
// without end.
const crashRetryPause = 10 * time.Millisecond

// settle sends a request until it is answered with success. Servers are expected
// to vanish; a refusal, or the loss of a server that nobody brought down, is an
// error.
func (c *crashClient) settle(ctx context.Context, request crashRequest) ([]byte, settlement, error) {
	var avoid *crashServer
	for attempt := 1; ; attempt++ {
		server, err := c.fleet.pick(ctx, avoid)
		if err != nil {
			return nil, settlement{}, err
		}
		if attempt > 1 {
			c.fleet.retried.Add(1)
		}
		how := settlement{attempts: attempt, sent: time.Now()}
		c.fleet.happened(requestSent)
		status, body, err := c.send(ctx, server, request)
		switch {
		case ctx.Err() != nil:
			return nil, settlement{}, context.Cause(ctx)
		case err != nil && !server.signalled.Load():
			return nil, settlement{}, fmt.Errorf("%s: connection lost to a server that nobody brought down: %w", request.path, err)
		case err != nil:
			avoid = server
			c.http.CloseIdleConnections()
		case status == http.StatusServiceUnavailable:
			c.fleet.refused.Add(1)
			<-time.After(crashRetryPause)
		case status/100 != 2:
			return nil, settlement{}, fmt.Errorf("%s %s: attempt %d was answered %d: %s", request.method, request.path, attempt, status, body)
		default:
			if request.method != http.MethodGet {
				c.fleet.happened(requestAnswered)
			}
			return body, how, nil
		}
	}
}

func (c *crashClient) send(ctx context.Context, server *crashServer, request crashRequest) (int, []byte, error) {
	var body io.Reader
	if request.body != nil {
		text, err := json.Marshal(request.body)
		if err != nil {
			return 0, nil, err
		}
		body = bytes.NewReader(text)
	}
	r, err := http.NewRequestWithContext(ctx, request.method, server.address+request.path, body)
	if err != nil {
		return 0, nil, err
	}
	r.Header.Set("Authorization", "Bearer "+c.key)
	r.Header.Set("Content-Type", "application/json")
	if request.idempotencyKey != "" {
		r.Header.Set("Idempotency-Key", request.idempotencyKey)
	}
	answer, err := c.http.Do(r)
	if err != nil {
		return 0, nil, err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	return answer.StatusCode, text, err
}

// crashCall settles a request and reads the parts of the answer that never change.
// Now and then it sends the request needlessly again, or twice at the same
// time: the answer must be the same and the effect one.
func crashCall[T comparable](ctx context.Context, c *crashClient, request crashRequest) (T, settlement, error) {
	switch c.random.IntN(10) {
	case 0:
		first, how, err := crashCallOnce[T](ctx, c, request)
		if err != nil {
			return first, how, err
		}
		second, _, err := crashCallOnce[T](ctx, c, request)
		return second, how, crashSameAnswer(request, first, second, err)
	case 1:
		return crashCallTwice[T](ctx, c, request)
	default:
		return crashCallOnce[T](ctx, c, request)
	}
}

func crashCallOnce[T any](ctx context.Context, c *crashClient, request crashRequest) (answer T, how settlement, err error) {
	body, how, err := c.settle(ctx, request)
	if err != nil {
		return answer, how, err
	}
	if err := json.Unmarshal(body, &answer); err != nil {
		return answer, how, fmt.Errorf("%s: %w", request.path, err)
	}
	return answer, how, nil
}

func crashCallTwice[T comparable](ctx context.Context, c *crashClient, request crashRequest) (T, settlement, error) {
	var twin T
	var twinErr error
	var sending sync.WaitGroup
	sending.Go(func() { twin, _, twinErr = crashCallOnce[T](ctx, c, request) })
	answer, _, err := crashCallOnce[T](ctx, c, request)
	sending.Wait()
	if err == nil {
		err = crashSameAnswer(request, answer, twin, twinErr)
	}
	// Which of the two did it cannot be told, so neither counts as a retry.
	return answer, settlement{attempts: 1}, err
}

func crashSameAnswer[T comparable](request crashRequest, first, second T, err error) error {
	if err != nil {
		return err
	}
	if first != second {
		return fmt.Errorf("%s: the same request was answered in two ways:\n%+v\n%+v", request.path, first, second)
	}
	return nil
}
