package httpapi_test

import (
	"context"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

// stuckStore is a store that can be made not to answer, whatever its callers' patience.
type stuckStore struct {
	store.Store
	lists, pings atomic.Bool
	released     chan struct{}
}

func (s *stuckStore) Organizations(ctx context.Context) ([]*ledger.Organization, error) {
	if s.lists.Load() {
		<-s.released
	}
	return s.Store.Organizations(ctx)
}

func (s *stuckStore) Ping(ctx context.Context) error {
	if s.pings.Load() {
		<-s.released
	}
	return s.Store.Ping(ctx)
}

// Whatever the store does not answer, /readyz answers within two seconds, and does not say
// that the service is ready: it is degraded where something is not known, and unavailable
// where the store does not answer at all.
//
//countersign:race
func TestReadinessOfAStoreThatDoesNotAnswer(t *testing.T) {
	eachStore(t, func(t *testing.T, open func(*testing.T) *database) {
		stuck := &stuckStore{released: make(chan struct{})}
		s := start(t, open(t), setup{wrap: func(inner store.Store) store.Store {
			stuck.Store = inner
			return stuck
		}})
		defer close(stuck.released)
		check := func(code int, status, reason, check, detail string) {
			t.Helper()
			began := time.Now()
			fresh := s.limited(t, nil, 0) // without what was found before
			got := decode[struct {
				Status  string
				Reasons []struct {
					Name  string
					Count int
				}
				Checks []struct{ Name, Status, Detail string }
			}](t, fresh.get(t, credential{}, "/readyz").expect(t, code))
			if took := time.Since(began); took > 2*time.Second {
				t.Errorf("answered after %s", took)
			}
			if got.Status != status || reason != "" && (len(got.Reasons) != 1 || got.Reasons[0].Name != reason || got.Reasons[0].Count != 4) {
				t.Errorf("ready says %+v, want %s for %q", got, status, reason)
			}
			for _, one := range got.Checks {
				if one.Name == check && one.Detail != detail {
					t.Errorf("the check %s says %q, want %q", check, one.Detail, detail)
				}
			}
		}
		stuck.lists.Store(true)
		check(http.StatusOK, "degraded", "not_known", "rollback", "not known: the store does not answer")
		stuck.pings.Store(true)
		check(http.StatusServiceUnavailable, "unavailable", "", "storage", "the store does not answer")
	})
}
