package storetest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

var tokenRaceCases = []testCase{
	{name: "one issue, repeated concurrently", run: oneIssue, concurrent: true},
	{name: "issues under crossing keys", run: crossingIssues, concurrent: true},
	{name: "the latest of concurrent uses is stored", run: latestUse, concurrent: true},
	{name: "tokens used and revoked in crossing orders", run: crossingUses, concurrent: true},
}

// tryIssue tries once to issue tokens with idempotency keys unless they exist.
func (w *world) tryIssue(ctx context.Context, s store.Store, m *member, keys ...string) (issued []ledger.TokenID, repeated bool, err error) {
	needs := new(store.Needs)
	for _, key := range keys {
		needs.Issued = append(needs.Issued, store.TokenRef{Org: m.org.ID, Key: key})
	}
	err = s.Transact(ctx, needs, func(loaded *store.Loaded) (*store.Changes, error) {
		changes := new(store.Changes)
		for _, ref := range needs.Issued {
			token := loaded.Issued[ref]
			if token == nil {
				token = w.token(m.org.ID)
				token.IdempotencyKey = ref.Key
				changes.NewTokens = append(changes.NewTokens, token)
			}
			issued = append(issued, token.ID)
		}
		repeated = len(changes.NewTokens) == 0
		return changes, nil
	})
	return issued, repeated, err
}

// oneIssue: a caller that is refused finds the winner's token immediately when it retries.
func oneIssue(t *testing.T, w *world) {
	const workers = 12
	m := w.join(t)
	var seen [workers]ledger.TokenID
	w.together(t, workers, func(ctx context.Context, s store.Store, worker int) error {
		issued, _, err := w.tryIssue(ctx, s, m, "once")
		if errors.Is(err, store.ErrExists) {
			var repeated bool
			if issued, repeated, err = w.tryIssue(ctx, s, m, "once"); err == nil && !repeated {
				return errors.New("the key was refused, and then not found")
			}
		}
		if err == nil {
			seen[worker] = issued[0]
		}
		return err
	})
	tokens := must[[]*store.TokenRecord](t)(w.Tokens(t.Context(), m.org.ID, nil, 100))
	if len(tokens) != 1 {
		t.Fatalf("%d tokens were issued, want 1", len(tokens))
	}
	for worker, id := range seen {
		if id != tokens[0].ID {
			t.Errorf("worker %d got another token than the one that was issued", worker)
		}
	}
}

func crossingIssues(t *testing.T, w *world) {
	const workers, rounds, width = 6, 4, 20
	m := w.join(t)
	w.together(t, workers, func(ctx context.Context, s store.Store, worker int) error {
		order := rand.New(rand.NewPCG(4, uint64(worker)))
		for round := range rounds {
			var keys []string
			for _, i := range order.Perm(width) {
				keys = append(keys, fmt.Sprintf("round %d, key %d", round, i))
			}
			_, _, err := w.tryIssue(ctx, s, m, keys...)
			if errors.Is(err, store.ErrExists) {
				_, _, err = w.tryIssue(ctx, s, m, keys...)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
	if tokens := must[[]*store.TokenRecord](t)(w.Tokens(t.Context(), m.org.ID, nil, 1000)); len(tokens) != rounds*width {
		t.Errorf("%d tokens were issued, want %d", len(tokens), rounds*width)
	}
}

func latestUse(t *testing.T, w *world) {
	const workers, each = 9, 10
	m := w.join(t)
	tokens := w.issue(t, m, 5)
	base := w.now()
	w.together(t, workers, func(ctx context.Context, s store.Store, worker int) error {
		for _, i := range rand.New(rand.NewPCG(5, uint64(worker))).Perm(each) {
			used := make(map[ledger.TokenID]ledger.Time)
			for _, token := range tokens {
				used[token.ID] = base + ledger.Time(i*workers+worker)
			}
			if err := s.TouchTokens(ctx, used); err != nil {
				return err
			}
		}
		return nil
	})
	latest := base + workers*each - 1
	for _, token := range tokens {
		token.LastUsedAt = &latest
	}
	w.wantTokens(t, "tokens", m.org.ID, tokens...)
}

// crossingUses deadlocks in a store that writes in the order of its arguments. No call is retried,
// because none has a reason to fail.
func crossingUses(t *testing.T, w *world) {
	const workers, each = 9, 5
	m := w.join(t)
	tokens := w.issue(t, m, 150)
	at := w.now()
	var last [workers]ledger.Time
	w.together(t, workers, func(ctx context.Context, s store.Store, worker int) error {
		order := rand.New(rand.NewPCG(6, uint64(worker)))
		for range each {
			last[worker] = w.now()
			used := make(map[ledger.TokenID]ledger.Time)
			var revoked []*store.TokenRecord
			for _, i := range order.Perm(len(tokens)) {
				used[tokens[i].ID] = last[worker]
				revoked = append(revoked, &store.TokenRecord{ID: tokens[i].ID, Org: m.org.ID, RevokedAt: &at, RevocationReason: "rotated", Act: tokens[i].Act, MAC: []byte("other")})
			}
			err := s.TouchTokens(ctx, used)
			if err == nil && worker%2 == 0 {
				err = attempt(ctx, s, &store.Changes{RevokedTokens: revoked})
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
	latest := slices.Max(last[:])
	for _, token := range tokens {
		token.LastUsedAt, token.RevokedAt, token.RevocationReason, token.MAC = &latest, &at, "rotated", []byte("other")
	}
	w.wantTokens(t, "tokens", m.org.ID, tokens...)
}
