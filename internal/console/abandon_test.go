package console_test

import (
	"net/http"
	"testing"
	"time"

	"countersign/internal/ledger"
	"countersign/internal/service"
)

// The page of an abandoned chain leads to the one that continues it, and back.
func TestChainPagesOfALineage(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{})
	old := w.open(t, w.acme, "quiet", `{}`)
	w.settings(t, w.acme, `{"abandon_after_hours":1}`)
	w.elapsed.Add(int64(2 * time.Hour))
	jobs, err := w.service.Jobs().Claim(t.Context(), 5*time.Minute, map[string]int{service.JobAbandon: 1})
	if err != nil || len(jobs) != 1 {
		t.Fatalf("%d rounds are due: %v", len(jobs), err)
	}
	if err := w.service.Jobs().Abandon(t.Context(), jobs[0]); err != nil {
		t.Fatal(err)
	}
	member := w.signedIn(t, w.acme, ledger.RoleMember)
	page := "/chains/" + old.String()
	member.get(t, page).expect(t, http.StatusOK, "abandoned: no request for longer than").without(t, "Continued by", "Continues")
	next := w.record(t, w.acme, old, `{"agent_name":"clerk","action_type":"tool_call","action_name":"late","payload":{}}`).Chain
	member.get(t, page).expect(t, http.StatusOK, "Abandoned and continued", `href="/chains/`+next.String()).without(t, "Continues<")
	member.get(t, "/chains/"+next.String()).expect(t, http.StatusOK, "Continues", `href="`+page, "still open").without(t, "Continued by")
}
