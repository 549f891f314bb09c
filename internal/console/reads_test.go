package console_test

import (
	"context"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"

	"countersign/internal/httpapi"
	"countersign/internal/ledger"
)

// However many reads of an organization run at once through the API, its pages wait like its other
// reads, and so does a very large form. The pages of another organization do not wait, and neither
// do other forms.
//
//countersign:race
func TestPagesShareTheReadsOfTheirOrganization(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{})
	api := httpapi.New(httpapi.Config{Service: w.service, Log: slog.New(slog.DiscardHandler)})
	w.listen(t, setup{limits: api})
	b, other := w.signedIn(t, w.acme, ledger.RoleMember), w.signedIn(t, w.rival, ledger.RoleMember)
	admin := w.signedIn(t, w.acme, ledger.RoleAdmin)
	released := holdReads(t, w, api)
	pages := []string{"/", "/chains", "/receipts", "/approvals", "/policies"}
	var answered, sent sync.WaitGroup
	shown := make(chan string, len(pages)+1)
	sent.Add(1)
	answered.Go(func() {
		sent.Done()
		large := url.Values{"document": {strings.Repeat("# comment\n", 30_000)}, "format": {"yaml"}, "replaces": {"0"}}
		admin.post(t, "/policies/check", large).expect(t, http.StatusUnprocessableEntity)
		shown <- "a large form"
	})
	for _, page := range pages {
		sent.Add(1)
		answered.Go(func() {
			sent.Done()
			b.get(t, page).expect(t, http.StatusOK)
			shown <- page
		})
	}
	sent.Wait()
	for _, page := range pages {
		other.get(t, page).expect(t, http.StatusOK)
	}
	admin.post(t, "/policies/check", url.Values{"document": {rules}, "format": {"yaml"}, "replaces": {"0"}}).expect(t, http.StatusOK)
	w.signedIn(t, w.acme, ledger.RoleAdmin).post(t, "/sign-out", nil).expect(t, http.StatusSeeOther)
	select {
	case page := <-shown:
		t.Errorf("%s was read beside too many other reads of its organization", page)
	default:
	}
	released()
	answered.Wait()
	for range 10 { // more than there are slots: a page that fails releases its own too
		b.get(t, "/chains/"+w.acme.slug).expect(t, http.StatusNotFound)
	}
	b.get(t, "/chains").expect(t, http.StatusOK)
}

// holdReads takes every slot for reads of acme's members.
func holdReads(t *testing.T, w *world, api *httpapi.API) (release func()) {
	t.Helper()
	caller, err := w.service.Authenticate(t.Context(), w.acme.keys[ledger.RoleMember].Text.Reveal())
	if err != nil {
		t.Fatal(err)
	}
	now, cancel := context.WithCancel(t.Context())
	cancel()
	var held []func()
	for {
		leave, err := api.Read(now, caller)
		if err != nil {
			return func() {
				for _, leave := range held {
					leave()
				}
			}
		}
		held = append(held, leave)
	}
}
