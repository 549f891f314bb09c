package httpapi_test

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"strings"
	"testing"

	sumdb "golang.org/x/mod/sumdb/tlog"

	"countersign/internal/ledger"
	"countersign/internal/service"
	"countersign/internal/servicetest"
	"countersign/internal/testdb"
	"countersign/internal/tlog"
)

// served reads a log's tiles over HTTP, as any client of C2SP tlog-tiles does.
type served struct {
	t    *testing.T
	s    *stack
	base string
}

func (served) Height() int                      { return 8 }
func (served) SaveTiles([]sumdb.Tile, [][]byte) {}

func (r served) ReadTiles(tiles []sumdb.Tile) ([][]byte, error) {
	data := make([][]byte, len(tiles))
	for i, tile := range tiles {
		got := r.s.get(r.t, credential{}, r.base+strings.Replace(tile.Path(), "tile/8/", "tile/", 1)).expect(r.t, http.StatusOK)
		if kind, cache := got.header.Get("Content-Type"), got.header.Get("Cache-Control"); kind != "application/octet-stream" || !strings.Contains(cache, "immutable") {
			r.t.Errorf("a tile is %q, to be kept as %q", kind, cache)
		}
		data[i] = got.body
	}
	return data, nil
}

// logBase is where an organization's log is served, once a checkpoint covers so many
// receipts, with that checkpoint.
func (s *stack) logBase(t *testing.T, slug string, receipts int64) (string, tlog.Checkpoint) {
	t.Helper()
	var base string
	var c tlog.Checkpoint
	servicetest.Eventually(t, "a checkpoint covers all receipts", func() bool {
		origin, keys, err := s.Service.Operator().LogVerifierKeys(t.Context(), slug)
		if err != nil {
			return false
		}
		base = "/public/log/" + strings.TrimPrefix(origin, "log.example.com/") + "/"
		got := s.get(t, credential{}, base+"checkpoint")
		if got.status == http.StatusNotFound {
			return false // it was opened just now
		}
		if got.expect(t, http.StatusOK); got.header.Get("Cache-Control") != "no-cache" || got.header.Get("Content-Type") != "text/plain; charset=utf-8" {
			t.Errorf("a checkpoint is %q, to be kept as %q", got.header.Get("Content-Type"), got.header.Get("Cache-Control"))
		}
		verifier, err := tlog.Verifier(origin, keys[0].Public)
		if err == nil {
			c, _, err = tlog.Open(got.body, origin, verifier)
		}
		if err != nil {
			t.Fatal(err)
		}
		return c.Size == receipts
	})
	return base, c
}

// Receipts are in the public log within moments. The library that others read such logs
// with finds each of them there, in tiles of three kinds, and no address but the right one
// leads to a tile.
//
//countersign:race
func TestLogIsServed(t *testing.T) {
	t.Parallel()
	s := start(t, openDatabase(t, testdb.SQLite(t)), setup{signing: true})
	caller, err := s.Service.Authenticate(t.Context(), s.acme.agent.text)
	if err != nil {
		t.Fatal(err)
	}
	const receipts = 259
	leaves := make([]sumdb.Hash, receipts)
	for i := range leaves {
		chain := &ledger.Chain{Name: fmt.Sprint("chain ", i)}
		opened, err := s.Service.OpenChain(t.Context(), caller, chain, "")
		var sealed *service.Completed
		if err == nil {
			sealed, err = s.Service.CompleteChain(t.Context(), caller, opened.ID, &ledger.Completion{})
		}
		if err != nil {
			t.Fatal(err)
		}
		leaves[i] = sumdb.RecordHash(sealed.Receipt)
	}
	base, c := s.logBase(t, "acme", receipts)
	reader := sumdb.TileHashReader(sumdb.Tree{N: c.Size, Hash: c.Root}, served{t, s, base})
	for _, index := range []int64{0, 255, 256, 258} {
		proof, err := sumdb.ProveRecord(c.Size, index, reader)
		if err == nil {
			err = sumdb.CheckRecord(proof, c.Size, c.Root, index, leaves[index])
		}
		if err != nil {
			t.Errorf("receipt %d: %v", index+1, err)
		}
	}
	for _, path := range []string{"tile/0/001.p/1", "tile/0/000.p/255", "tile/0/000", "tile/1/000.p/1"} {
		s.get(t, credential{}, base+path).expect(t, http.StatusOK)
	}
	for _, path := range []string{
		"tile/0/001", "tile/0/001.p/4", "tile/1/000.p/2", "tile/2/000.p/1", "tile/0/0", "tile/0/0000", "tile/00/000", "tile/8/000", "tile/0/x000/000", "tile/0/000.p/0",
		"tile/0/%30%30%30", "tile/0/001.p%2F1", "tile/entries/000", "tile/0/000/", "tile/0/000.p/256", "tile/0/001.p/01",
	} {
		s.get(t, credential{}, base+path).refuse(t, http.StatusNotFound, "not_found")
	}
	for _, id := range []string{strings.Repeat("0", 32), strings.ToUpper(strings.Trim(strings.TrimPrefix(base, "/public/log/"), "/")), "x"} {
		s.get(t, credential{}, "/public/log/"+id+"/checkpoint").refuse(t, http.StatusNotFound, "not_found")
	}
	keys := decode[struct {
		Keys []struct {
			Status    string
			PublicKey string `json:"public_key"`
		}
	}](t, s.get(t, credential{}, "/.well-known/countersign/log-keys").expect(t, http.StatusOK))
	if want := base64.StdEncoding.EncodeToString(s.Service.LogKeys()[0].Public); len(keys.Keys) != 1 || keys.Keys[0].Status != "active" || keys.Keys[0].PublicKey != want {
		t.Errorf("the keys are %+v", keys)
	}
}
