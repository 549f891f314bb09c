package keyring

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"countersign/internal/ledger"
)

var (
	acme  = uuid.UUID{1}
	rival = uuid.UUID{2}
)

func openHeads(t *testing.T, path string, ring *Ring) *Heads {
	t.Helper()
	heads, err := OpenHeads(path, ring)
	if err != nil {
		t.Fatal(err)
	}
	return heads
}

// newHeads returns empty heads of a ledger. again opens the same file once more.
func newHeads(t *testing.T) (heads *Heads, again func() *Heads) {
	t.Helper()
	heads, again = blankHeads(t)
	if err := heads.Adopt(ledgerA); err != nil {
		t.Fatal(err)
	}
	return heads, again
}

// blankHeads returns blank heads. again opens the same file once more.
func blankHeads(t *testing.T) (heads *Heads, again func() *Heads) {
	t.Helper()
	_, ring := createdRing(t)
	path := filepath.Join(t.TempDir(), "heads.json")
	return openHeads(t, path, ring), func() *Heads { return openHeads(t, path, ring) }
}

func checkHeads(t *testing.T, heads *Heads, want map[uuid.UUID]Seen) {
	t.Helper()
	if diff := cmp.Diff(want, heads.All()); diff != "" {
		t.Errorf("what is remembered (-want +got):\n%s", diff)
	}
}

func flush(t *testing.T, heads *Heads) {
	t.Helper()
	if err := heads.Flush(); err != nil {
		t.Fatal(err)
	}
}

// Noted heads are read back after a restart, and a late note does not lower a count.
func TestHeadsOutliveTheirProcess(t *testing.T) {
	t.Parallel()
	heads, again := newHeads(t)
	heads.Note(acme, Seen{Count: 2, Last: [32]byte{2}})
	heads.Note(acme, Seen{Count: 3, Last: [32]byte{3}, Slug: "acme"})
	heads.Note(acme, Seen{Count: 1, Last: [32]byte{1}}) // late
	heads.Note(rival, Seen{Count: 7, Last: [32]byte{7}})
	checkHeads(t, again(), map[uuid.UUID]Seen{})
	flush(t, heads)
	want := map[uuid.UUID]Seen{acme: {Count: 3, Last: [32]byte{3}, Slug: "acme"}, rival: {Count: 7, Last: [32]byte{7}}}
	checkHeads(t, again(), want)
	if seen, ok := again().Seen(acme); !ok || seen != want[acme] {
		t.Errorf("of acme %+v (%v) was seen", seen, ok)
	}
}

// Receipts and acts are noted together or separately, and neither lowers the other.
func TestHeadsRememberActs(t *testing.T) {
	t.Parallel()
	heads, again := newHeads(t)
	heads.Note(acme, Seen{Count: 2, Last: [32]byte{2}, Slug: "acme"})
	heads.Note(acme, Seen{Acts: ledger.LogEnd{Count: 9, Last: [32]byte{9}}})
	heads.Note(acme, Seen{Count: 3, Last: [32]byte{3}, Acts: ledger.LogEnd{Count: 8, Last: [32]byte{8}}})
	heads.Note(rival, Seen{Acts: ledger.LogEnd{Count: 1, Last: [32]byte{1}}, Slug: "rival"})
	flush(t, heads)
	checkHeads(t, again(), map[uuid.UUID]Seen{
		acme:  {Count: 3, Last: [32]byte{3}, Slug: "acme", Acts: ledger.LogEnd{Count: 9, Last: [32]byte{9}}},
		rival: {Slug: "rival", Acts: ledger.LogEnd{Count: 1, Last: [32]byte{1}}},
	})
}

// Accepting an older head replaces only what was noted for that organization, and a running server
// picks it up.
func TestHeadsThatAreAccepted(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		now  Seen
		want map[uuid.UUID]Seen
	}{
		"older":   {Seen{Count: 1, Last: [32]byte{1}}, map[uuid.UUID]Seen{acme: {Count: 1, Last: [32]byte{1}, Slug: "acme"}, rival: {Count: 8, Last: [32]byte{8}}}},
		"nothing": {Seen{}, map[uuid.UUID]Seen{rival: {Count: 8, Last: [32]byte{8}}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server, again := newHeads(t)
			server.Note(acme, Seen{Count: 3, Last: [32]byte{3}, Slug: "acme"})
			server.Note(rival, Seen{Count: 7, Last: [32]byte{7}})
			flush(t, server)
			operator := again()
			server.Note(rival, Seen{Count: 8, Last: [32]byte{8}})
			flush(t, server)
			if err := operator.Accept(acme, test.now); err != nil {
				t.Fatal(err)
			}
			if err := server.Reload(); err != nil {
				t.Fatal(err)
			}
			checkHeads(t, server, test.want)
			checkHeads(t, again(), test.want)
		})
	}
}

// A running server does not overwrite what an operator has accepted in the meantime when it writes
// its own notes.
func TestAcceptanceIsNotWrittenOver(t *testing.T) {
	t.Parallel()
	server, again := newHeads(t)
	server.Note(acme, Seen{Count: 5, Last: [32]byte{5}, Slug: "acme"})
	flush(t, server)
	if err := again().Accept(acme, Seen{Count: 3, Last: [32]byte{3}}); err != nil {
		t.Fatal(err)
	}
	server.Note(rival, Seen{Count: 1, Last: [32]byte{1}, Slug: "rival"})
	flush(t, server)
	want := map[uuid.UUID]Seen{
		acme: {Count: 3, Last: [32]byte{3}, Slug: "acme"}, rival: {Count: 1, Last: [32]byte{1}, Slug: "rival"},
	}
	checkHeads(t, again(), want)
	checkHeads(t, server, want)
}

// A heads file that was edited is refused.
func TestHeadsThatWereChanged(t *testing.T) {
	t.Parallel()
	_, ring := createdRing(t)
	path := filepath.Join(t.TempDir(), "heads.json")
	heads := openHeads(t, path, ring)
	if err := heads.Adopt(ledgerA); err != nil {
		t.Fatal(err)
	}
	heads.Note(acme, Seen{Count: 3, Last: [32]byte{3}, Slug: "acme", Acts: ledger.LogEnd{Count: 5, Last: [32]byte{5}}})
	flush(t, heads)
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string][2]string{
		"count":        {`"count": 3`, `"count": 2`},
		"last":         {`"last": "03`, `"last": "04`},
		"slug":         {`"slug": "acme"`, `"slug": "rival"`},
		"acts":         {`"count": 5`, `"count": 4`},
		"last act":     {`"last": "05`, `"last": "04`},
		"no acts":      {`"acts"`, `"others"`},
		"organization": {acme.String(), rival.String()},
		"removed":      {`"heads": {`, `"heads": {}, "others": {`},
		"no JSON":      {`{`, ``},
		"unknown key":  {ring.CurrentKey(), "none"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			changed := strings.Replace(string(content), change[0], change[1], 1)
			if changed == string(content) {
				t.Fatalf("nothing to change in %s", content)
			}
			path := filepath.Join(t.TempDir(), "heads.json")
			if err := os.WriteFile(path, []byte(changed), 0o600); err != nil {
				t.Fatal(err)
			}
			if _, err := OpenHeads(path, ring); !errors.Is(err, ErrInvalidHeads) {
				t.Errorf("opened with %v", err)
			}
		})
	}
}

// A file that predates slugs is still valid.
func TestHeadsWithoutSlugs(t *testing.T) {
	t.Parallel()
	_, ring := createdRing(t)
	last := hex.EncodeToString(append([]byte{3}, make([]byte, 31)...))
	mac, _ := ring.MAC(ring.CurrentKey(), uuid.Nil, "heads", fmt.Appendf(nil, "%s 3 %s\n", acme, last))
	body, err := json.Marshal(map[string]any{
		"key_id": ring.CurrentKey(), "mac": hex.EncodeToString(mac[:]),
		"heads": map[string]any{acme.String(): map[string]any{"count": 3, "last": last}},
	})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "heads.json")
	if err := os.WriteFile(path, body, 0o600); err != nil {
		t.Fatal(err)
	}
	checkHeads(t, openHeads(t, path, ring), map[uuid.UUID]Seen{acme: {Count: 3, Last: [32]byte{3}}})
}

// Heads that cannot be written are reported before the first write, and the check leaves nothing
// behind.
func TestHeadsThatCannotBeWritten(t *testing.T) {
	t.Parallel()
	_, ring := createdRing(t)
	folder := t.TempDir()
	if err := openHeads(t, filepath.Join(folder, "heads.json"), ring).Writable(); err != nil {
		t.Errorf("a folder of one's own: %v", err)
	}
	if left, err := os.ReadDir(folder); err != nil || len(left) > 0 {
		t.Errorf("trying left %v behind (%v)", left, err)
	}
	nowhere := openHeads(t, filepath.Join(folder, "none", "heads.json"), ring)
	if err := nowhere.Writable(); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a folder that is not there: %v", err)
	}
	if err := nowhere.Adopt(ledgerA); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a ledger adopted in a folder that is not there: %v", err)
	}
	nowhere.Note(acme, Seen{Count: 1, Last: [32]byte{1}})
	if err := nowhere.Flush(); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("written into a folder that is not there: %v", err)
	}
}

// A heads file that is a symbolic link is read, but not written: the link would be replaced by a file, and
// the file that it leads to would stay behind.
func TestHeadsThroughALink(t *testing.T) {
	t.Parallel()
	heads, again := newHeads(t)
	if err := heads.Accept(acme, Seen{Count: 1}); err != nil {
		t.Fatal(err)
	}
	elsewhere := filepath.Join(t.TempDir(), "real.json")
	if err := errors.Join(os.Rename(heads.path, elsewhere), os.Symlink(elsewhere, heads.path)); err != nil {
		t.Fatal(err)
	}
	linked := again()
	if seen, _ := linked.Seen(acme); seen.Count != 1 {
		t.Errorf("through the link %d receipts are known", seen.Count)
	}
	for what, err := range map[string]error{"Accept": linked.Accept(acme, Seen{Count: 2}), "Writable": linked.Writable()} {
		if err == nil || !strings.Contains(err.Error(), "is a symbolic link") {
			t.Errorf("%s: %v", what, err)
		}
	}
	if info, err := os.Lstat(heads.path); err != nil || info.Mode()&os.ModeSymlink == 0 {
		t.Errorf("the link was replaced (%v)", err)
	}
}
