package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"path/filepath"
	"sync"
	"testing"

	"countersign/internal/nightly"
	"countersign/internal/testdb"
)

// Two servers on one PostgreSQL, paid from by many clients at once, never overspend a budget, and
// what they acknowledge is what the budget counts. A payment that still fits is allowed.
//
//countersign:norace its servers are processes
func TestBudgetOfTwoServers(t *testing.T) {
	t.Parallel()
	db := testdb.EmptyPostgres(t)
	keys := filepath.Join(t.TempDir(), "keys.json")
	f := startFaulty(t, "--database", db.URL, "--keys", keys)
	beside, err := startCrashServer(t.Context(), "--database", db.URL, "--keys", keys, "--heads", filepath.Join(t.TempDir(), "heads.json"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(beside.dispose)
	const limit = 10_000 // cents
	admin := f.client()
	admin.call(t, http.MethodPatch, "/v1/organization",
		`{"budgets":[{"name":"all","scope":"organization","window":"month","limit_usd":100,"decision":"deny"}]}`, &struct{}{})
	var crowd sync.WaitGroup
	var mu sync.Mutex
	spent, denied := 0, 0
	for i := range 16 {
		server := &faultyServer{crashServer: []*crashServer{f.crashServer, beside}[i%2], key: f.key}
		c := server.client()
		chain := c.open(t)
		crowd.Go(func() {
			defer c.http.CloseIdleConnections()
			for range nightly.Count(20, 200) {
				cents := 1 + rand.IntN(120)
				allowed, err := c.payCents(t.Context(), chain, cents)
				mu.Lock()
				switch {
				case err != nil:
					t.Error(err)
				case allowed:
					spent += cents
				default:
					denied++
				}
				mu.Unlock()
			}
		})
	}
	crowd.Wait()
	t.Logf("%d cents were spent, and %d payments denied", spent, denied)
	if spent > limit || denied == 0 {
		t.Errorf("%d cents were spent of %d, and %d payments denied", spent, limit, denied)
	}
	last := (&faultyServer{crashServer: beside, key: f.key}).client()
	chain := last.open(t)
	if left := limit - spent; left > 0 {
		if allowed, err := last.payCents(t.Context(), chain, left); err != nil || !allowed {
			t.Errorf("the last %d cents: %t, %v", left, allowed, err)
		}
	}
	if allowed, err := last.payCents(t.Context(), chain, 1); err != nil || allowed {
		t.Errorf("a payment beyond the budget: %t, %v", allowed, err)
	}
	for _, s := range []*crashServer{f.crashServer, beside} {
		if err := s.stop(); err != nil {
			t.Fatal(err)
		}
	}
	succeed(t, "audit", "--database", db.URL, "--keys", keys) // which recounts the budget
}

// payCents records a payment, and reports whether it is allowed.
func (c *client) payCents(ctx context.Context, chain string, cents int) (allowed bool, err error) {
	status, body, err := c.send(ctx, http.MethodPost, "/v1/chains/"+chain+"/events", fmt.Sprintf(
		`{"agent_name":"clerk","action_type":"tool_call","action_name":"send_payment","payload":{"amount_usd":%d.%02d,"to":"supplier"}}`, cents/100, cents%100))
	if err != nil {
		return false, err
	}
	var answer struct {
		Decision string `json:"policy_decision"`
	}
	if err := json.Unmarshal(body, &answer); err != nil || status >= 300 || answer.Decision != "allow" && answer.Decision != "deny" {
		return false, fmt.Errorf("a payment: status %d: %s", status, body)
	}
	return answer.Decision == "allow", nil
}
