package console_test

import (
	"net/http"
	"net/url"
	"strings"
	"testing"

	"countersign/internal/ledger"
)

// A refused form for a new key keeps the role and the expiry that were chosen. Otherwise the
// corrected form would create a key that never expires.
func TestRefusedKeyKeepsItsChoices(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{})
	admin := w.signedIn(t, w.acme, ledger.RoleAdmin)
	admin.get(t, "/api-keys").expect(t, http.StatusOK, `<option value="agent" selected>`, `<option value="" selected>never`)
	for _, chosen := range []struct{ role, days string }{{"member", "7"}, {"admin", "365"}, {"agent", ""}} {
		form := admin.fill(t, "/api-keys", url.Values{"name": {strings.Repeat("n", 201)}, "role": {chosen.role}, "days": {chosen.days}})
		admin.post(t, "/api-keys", form).
			expect(t, http.StatusUnprocessableEntity, `<option value="`+chosen.role+`" selected>`, `<option value="`+chosen.days+`" selected>`)
	}
}
