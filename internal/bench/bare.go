package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"
)

// answers are what the service answered to one request of each kind: the bare
// server answers the same bytes with the same headers, without doing anything
// for them.
type answers struct {
	Open, Event, Complete, Check *answer
}

type answer struct {
	Status int         `json:"status"`
	Header [][2]string `json:"header"`
	Body   []byte      `json:"body"`
}

func (a *answers) to(r *http.Request) *answer {
	switch {
	case strings.HasSuffix(r.URL.Path, "/events"):
		return a.Event
	case strings.HasSuffix(r.URL.Path, "/complete"):
		return a.Complete
	case strings.HasSuffix(r.URL.Path, "/verify"):
		return a.Check
	default:
		return a.Open
	}
}

// bareRequest has the members of every request that is sent here.
type bareRequest struct {
	AgentName       string         `json:"agent_name"`
	ActionType      string         `json:"action_type"`
	ActionName      string         `json:"action_name"`
	ParentAgentName string         `json:"parent_agent_name"`
	Payload         map[string]any `json:"payload"`
	Metadata        map[string]any `json:"metadata"`
	IdempotencyKey  string         `json:"idempotency_key"`
	Name            string         `json:"name"`
	ExternalChainID string         `json:"external_chain_id"`
	Environment     string         `json:"environment"`
	Outcome         string         `json:"outcome"`
}

func (a *answers) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.ContentLength != 0 {
		body := make([]byte, max(r.ContentLength, 0))
		var request bareRequest
		if _, err := io.ReadFull(r.Body, body); err != nil || json.Unmarshal(body, &request) != nil {
			http.Error(w, "unreadable", http.StatusBadRequest)
			return
		}
	}
	answer := a.to(r)
	header := w.Header()
	for _, member := range answer.Header {
		header.Set(member[0], member[1])
	}
	header.Set("Content-Length", strconv.Itoa(len(answer.Body)))
	w.WriteHeader(answer.Status)
	_, _ = w.Write(answer.Body) // a client that has gone misses nothing
}

// ServeBare is the server that the service is compared with: net/http alone. It
// reads each request, decodes it with encoding/json, and answers what the file
// holds, until ctx ends.
func ServeBare(ctx context.Context, answersFile string, log io.Writer) error {
	data, err := os.ReadFile(answersFile) //nolint:gosec // the bench names the file
	if err != nil {
		return fmt.Errorf("answers: %w", err)
	}
	var known answers
	if err := json.Unmarshal(data, &known); err != nil {
		return fmt.Errorf("answers: %w", err)
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	slog.New(slog.NewJSONHandler(log, nil)).Info(servingMessage, "address", "http://"+listener.Addr().String())
	server := &http.Server{Handler: &known, ReadHeaderTimeout: 10 * time.Second}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// sample asks the service one request of each kind and writes its answers to a
// file for the bare server.
func sample(ctx context.Context, t *target, file string) error {
	ask := func(method, path, body string) (*answer, error) {
		return call(ctx, http.DefaultClient, t.server.address, method, path, t.apiKey, body)
	}
	opened, err := ask(http.MethodPost, "/v1/chains", chainBody)
	if err != nil {
		return err
	}
	chain, err := idIn(opened.Body, idMember)
	if err != nil {
		return err
	}
	got := answers{Open: opened}
	for i := range eventsPerCompletion {
		if got.Event, err = ask(http.MethodPost, "/v1/chains/"+chain+"/events", eventHead+strconv.Itoa(i)+eventTail); err != nil {
			return err
		}
	}
	if got.Complete, err = ask(http.MethodPost, "/v1/chains/"+chain+"/complete", `{"outcome":"completed"}`); err != nil {
		return err
	}
	receipt, err := idIn(got.Complete.Body, `"receipt_id":"`)
	if err != nil {
		return err
	}
	if got.Check, err = ask(http.MethodGet, "/v1/receipts/"+receipt+"/verify", ""); err != nil {
		return err
	}
	if !bytes.Contains(got.Check.Body, []byte(`"valid":true`)) {
		return fmt.Errorf("the service does not verify its own receipt: %s", got.Check.Body)
	}
	data, err := json.Marshal(got)
	if err != nil {
		return fmt.Errorf("answers: %w", err)
	}
	return os.WriteFile(file, data, 0o600)
}
