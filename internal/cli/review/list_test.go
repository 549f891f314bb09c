package review

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"countersign/internal/cli"
	"countersign/internal/ledger"
)

// A list without a flag for its length is printed with a note if there is more, so that it is not
// taken for complete. A list that just fits has no note.
func TestLongListsHaveANote(t *testing.T) {
	t.Parallel()
	key := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(key, []byte(ledger.NewAPIKey([32]byte{1}).Reveal()), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		most int
		note string
		run  func(cli.Remote, *cli.Process) error
	}{
		{maxListed, "only the first 10000 events", func(server cli.Remote, p *cli.Process) error {
			return (&chainsShowCommand{Remote: server, ID: "01a1e8f1-2936-7000-8245-f551aea1f85b"}).Run(p)
		}},
		{maxListed, "only the first 10000 events", func(server cli.Remote, p *cli.Process) error {
			return (&chainsShowCommand{Remote: server, ID: "01a1e8f1-2936-7000-8245-f551aea1f85b", JSON: true}).Run(p)
		}},
		{maxApprovals, "only the newest 2000 approvals", func(server cli.Remote, p *cli.Process) error {
			return (&approvalsListCommand{Remote: server, Status: "all"}).Run(p)
		}},
		{maxApprovals, "only the newest 2000 approvals", func(server cli.Remote, p *cli.Process) error {
			return (&approvalsListCommand{Remote: server, Status: "denied", JSON: true}).Run(p)
		}},
	} {
		for count, noted := range map[int]bool{c.most: false, c.most + 1: true} {
			server := httptest.NewServer(entries(count))
			t.Cleanup(server.Close)
			var out, notes strings.Builder
			if err := c.run(cli.Remote{URL: server.URL, KeyFile: key}, &cli.Process{Ctx: t.Context(), Out: &out, Err: &notes}); err != nil {
				t.Fatal(err)
			}
			if got := strings.Count(out.String(), "step"); got != c.most || strings.Contains(notes.String(), c.note) != noted {
				t.Errorf("of %d entries %d are shown, with the notes %q", count, got, notes.String())
			}
		}
	}
}

// entries answers like the API: every list has count entries.
func entries(count int) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !r.URL.Query().Has("limit") {
			_, _ = io.WriteString(w, `{"id":"01a1e8f1-2936-7000-8245-f551aea1f85b","name":"long"}`)
			return
		}
		after, _ := strconv.Atoi(r.URL.Query().Get("cursor"))
		limit, _ := strconv.Atoi(r.URL.Query().Get("limit"))
		last := min(after+limit, count)
		var page []string
		for number := after + 1; number <= last; number++ {
			page = append(page, fmt.Sprintf(`{"sequence":%d,"action_name":"step"}`, number))
		}
		next := "null"
		if last < count {
			next = strconv.Quote(strconv.Itoa(last))
		}
		fmt.Fprintf(w, `{"data":[%s],"next_cursor":%s}`, strings.Join(page, ","), next)
	})
}

// An action that waited for a person is shown with how the wait ended.
func TestEventsShowHowAWaitEnded(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		`{"status":"awaiting_approval","approval":{"status":"approved"}}`: "approved",
		`{"status":"awaiting_approval"}`:                                  "awaiting_approval",
		`{"status":"denied"}`:                                             "denied",
	} {
		var event EventEntry
		if err := json.Unmarshal([]byte(text), &event); err != nil {
			t.Fatal(err)
		}
		if got := event.standing(); got != want {
			t.Errorf("%s is shown as %s", text, got)
		}
	}
}
