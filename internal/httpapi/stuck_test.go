package httpapi_test

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"countersign/internal/httpapi"
	"countersign/internal/ledger"
	"countersign/internal/store"
)

// stuckStore is a store that can be made not to answer, whatever its callers' patience.
type stuckStore struct {
	store.Store
	lists, pings atomic.Pointer[chan struct{}] // a call waits until it is closed; nil for no wait
}

func (s *stuckStore) Organizations(ctx context.Context) ([]*ledger.Organization, error) {
	if released := s.lists.Load(); released != nil {
		<-*released
		return nil, ctx.Err()
	}
	return s.Store.Organizations(ctx)
}

func (s *stuckStore) Ping(ctx context.Context) error {
	if released := s.pings.Load(); released != nil {
		<-*released
		return ctx.Err()
	}
	return s.Store.Ping(ctx)
}

// Whatever the store does not answer, /readyz answers within two seconds, and does not say
// that the service is ready: it is degraded where something is not known, and unavailable
// where the store does not answer at all. The clock is the test's own, so that a busy machine
// changes nothing.
//
//countersign:race
func TestReadinessOfAStoreThatDoesNotAnswer(t *testing.T) {
	eachStore(t, func(t *testing.T, open func(*testing.T) *database) {
		stuck := new(stuckStore)
		s := start(t, open(t), setup{wrap: func(inner store.Store) store.Store {
			stuck.Store = inner
			return stuck
		}})
		ask := func(t *testing.T, code int, status, reason, check, detail string) {
			t.Helper()
			fresh := httpapi.New(httpapi.Config{Service: s.Service, Log: slog.New(capturing)}) // without what was found before
			began, answer := time.Now(), httptest.NewRecorder()
			fresh.Handler().ServeHTTP(answer, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/readyz", http.NoBody))
			if took := time.Since(began); took > 2*time.Second {
				t.Errorf("answered after %s", took)
			}
			var got struct {
				Status  string
				Reasons []struct {
					Name  string
					Count int
				}
				Checks []struct{ Name, Status, Detail string }
			}
			if err := json.Unmarshal(answer.Body.Bytes(), &got); err != nil {
				t.Fatal(err)
			}
			if answer.Code != code || got.Status != status || reason != "" && (len(got.Reasons) != 1 || got.Reasons[0].Name != reason || got.Reasons[0].Count != 4) {
				t.Errorf("ready says %d %+v, want %d %s for %q", answer.Code, got, code, status, reason)
			}
			for _, one := range got.Checks {
				if one.Name == check && one.Detail != detail {
					t.Errorf("the check %s says %q, want %q", check, one.Detail, detail)
				}
			}
		}
		synctest.Test(t, func(t *testing.T) {
			released := make(chan struct{})
			defer close(released)
			stuck.lists.Store(&released)
			ask(t, http.StatusOK, "degraded", "not_known", "rollback", "not known: the store does not answer")
			stuck.pings.Store(&released)
			ask(t, http.StatusServiceUnavailable, "unavailable", "", "storage", "the store does not answer")
		})
		stuck.lists.Store(nil)
		stuck.pings.Store(nil)
	})
}
