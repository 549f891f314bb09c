package review

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"countersign/internal/cli"
	"countersign/internal/ledger"
)

// serverWith is a client of a server that has the given pending approvals, and no others.
func serverWith(t *testing.T, approvals string) *cli.Client {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		shown := ""
		if r.URL.Query().Get("status") == "pending" {
			shown = approvals
		}
		_, _ = io.WriteString(w, `{"data":[`+shown+`],"next_cursor":null}`)
	}))
	t.Cleanup(server.Close)
	return cli.NewClient(server.URL, ledger.Secret{})
}

// Of an approval that was changed outside the service only the id is known. It is not taken for
// one that was decided.
func TestChangedApprovalIsNotDecided(t *testing.T) {
	t.Parallel()
	api := serverWith(t, `{"id":"01a1e8f1-2936-7000-8245-f551aea1f85b","integrity":"failed"}`)
	found, err := FindApproval(t.Context(), api, "01a1e8f1-2936")
	if err == nil || !strings.Contains(err.Error(), "changed outside the service") {
		t.Errorf("found %+v: %v", found, err)
	}
}

// A cancelled approval says whether its client gave up or its chain was completed. Only the former
// has a comment.
func TestCancelledApprovalSaysWhy(t *testing.T) {
	t.Parallel()
	comment := "no longer\x1b[2J needed"
	for want, approval := range map[string]*Approval{
		"cancelled: its chain was completed before anyone decided":                        {Status: "cancelled"},
		`cancelled: the client gave up before anyone decided (no longer\u001b[2J needed)`: {Status: "cancelled", Comment: &comment},
	} {
		if got := settledText(approval); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// If more approvals wait than are read, the list says so, and a prefix that is not found among them
// is not called unknown.
func TestUnreadApprovalsAreMentioned(t *testing.T) {
	t.Parallel()
	var one strings.Builder
	for i := range pageSize {
		if i > 0 {
			one.WriteByte(',')
		}
		one.WriteString(`{"id":"01a1e8f1-2936-7000-8245-f551aea1f85b","status":"pending"}`)
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"data":[`+one.String()+`],"next_cursor":"x"}`)
	}))
	t.Cleanup(server.Close)
	api := cli.NewClient(server.URL, ledger.Secret{})
	var notes strings.Builder
	read, err := (&approvalsListCommand{Status: "waiting"}).read(&cli.Process{Ctx: t.Context(), Err: &notes}, api)
	if err != nil || len(read.list) != 2*maxApprovals || len(read.raw) != len(read.list) || !strings.Contains(notes.String(), "only the newest") {
		t.Errorf("%d approvals, %v, noted %q", len(read.list), err, notes.String())
	}
	if _, err := FindApproval(t.Context(), api, "ffff"); err == nil || !strings.Contains(err.Error(), "give the whole id") {
		t.Errorf("an unread prefix: %v", err)
	}
}
