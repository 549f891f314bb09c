package tlog

import (
	"bytes"
	"crypto/ed25519"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/transparency-dev/merkle/compact"
	"github.com/transparency-dev/merkle/proof"
	"github.com/transparency-dev/merkle/rfc6962"
)

// grown is a log in memory: the tiles that its edge has handed out, and its roots.
type grown struct {
	edge   *Edge
	tiles  map[Tile][]byte // by level and number
	leaves []Hash
	roots  map[int64]Hash // by size
}

func newGrown() *grown {
	return &grown{edge: NewEdge(), tiles: make(map[Tile][]byte), roots: map[int64]Hash{0: EmptyRoot()}}
}

func (g *grown) read(tiles []Tile) ([][]byte, error) {
	data := make([][]byte, len(tiles))
	for i, tile := range tiles {
		data[i] = g.tiles[Tile{Level: tile.Level, Number: tile.Number}]
	}
	return data, nil
}

// grow adds leaves up to a size, and keeps the tiles.
func (g *grown) grow(t *testing.T, size int64) {
	t.Helper()
	for n := g.edge.Size(); n < size; n++ {
		leaf := LeafHash(binary.BigEndian.AppendUint64(nil, uint64(n)))
		g.edge.Add(leaf)
		g.leaves = append(g.leaves, leaf)
	}
	for _, tile := range g.edge.Grown() {
		g.tiles[Tile{Level: tile.Level, Number: tile.Number}] = tile.Hashes
	}
	root, err := g.edge.Root()
	if err != nil {
		t.Fatal(err)
	}
	g.roots[size] = root
}

func (g *grown) tree(size int64) *Tree { return NewTree(size, g.roots[size], g.read) }

// sizes lie around the ends of tiles of three levels.
var sizes = []int64{1, 2, 3, 255, 256, 257, 511, 512, 600, 65535, 65536, 65537, 66000}

// Roots, inclusion proofs and consistency proofs are those of another implementation of
// RFC 6962, for sizes around the ends of tiles, and an edge that is read back goes on to
// the same roots.
func TestTreeIsThatOfAnotherImplementation(t *testing.T) {
	t.Parallel()
	g := newGrown()
	factory := compact.RangeFactory{Hash: rfc6962.DefaultHasher.HashChildren}
	other := factory.NewEmptyRange(0)
	for _, size := range sizes {
		if size > 1 { // as after a restart
			edge, err := g.tree(g.edge.Size()).Edge()
			if err != nil {
				t.Fatal(err)
			}
			g.edge = edge
		}
		before := g.edge.Size()
		g.grow(t, size)
		for _, leaf := range g.leaves[before:] {
			if err := other.Append(leaf[:], nil); err != nil {
				t.Fatal(err)
			}
		}
		root, err := other.GetRootHash(nil)
		if err != nil || Hash(root) != g.roots[size] {
			t.Fatalf("size %d: another root (%v)", size, err)
		}
		for _, index := range []int64{0, 1, 254, 255, 256, size / 2, size - 2, size - 1} {
			if index < 0 || index >= size {
				continue
			}
			leaf := g.leaves[index]
			steps, err := g.tree(size).Inclusion(index, leaf)
			if err != nil {
				t.Fatalf("leaf %d of %d: %v", index, size, err)
			}
			if err := proof.VerifyInclusion(rfc6962.DefaultHasher, uint64(index), uint64(size), leaf[:], raw(steps), root); err != nil {
				t.Errorf("leaf %d of %d: %v", index, size, err)
			}
		}
		for _, older := range sizes {
			if older > size {
				break
			}
			steps, was, err := g.tree(size).Consistency(older)
			if err != nil || was != g.roots[older] {
				t.Fatalf("from %d to %d: %v", older, size, err)
			}
			if err := proof.VerifyConsistency(rfc6962.DefaultHasher, uint64(older), uint64(size), raw(steps), was[:], root); err != nil {
				t.Errorf("from %d to %d: %v", older, size, err)
			}
		}
	}
}

func raw(hashes []Hash) [][]byte {
	list := make([][]byte, len(hashes))
	for i := range hashes {
		list[i] = hashes[i][:]
	}
	return list
}

// A tile in which one bit was changed leads to no proof, no tile and no edge that needs
// it, and never to a wrong one.
func TestChangedTileIsRefused(t *testing.T) {
	t.Parallel()
	const size = 700
	g := newGrown()
	g.grow(t, size)
	for at := range g.tiles {
		for _, place := range []int{0, len(g.tiles[at]) / 2, len(g.tiles[at]) - 1} {
			g.tiles[at][place] ^= 1
			tile := Tile{at.Level, at.Number, len(g.tiles[at]) / 32}
			if _, err := g.tree(size).Tile(tile); !errors.Is(err, ErrInconsistent) {
				t.Errorf("%s: %v", tile.Path(), err)
			}
			index := at.Number<<(8*at.Level+8) + int64(place/32)<<(8*at.Level)
			if _, err := g.tree(size).Inclusion(index, g.leaves[index]); !errors.Is(err, ErrInconsistent) {
				t.Errorf("%s: proof of leaf %d: %v", tile.Path(), index, err)
			}
			if _, err := g.tree(size).Edge(); tile.Width < TileWidth && !errors.Is(err, ErrInconsistent) {
				t.Errorf("%s: edge: %v", tile.Path(), err)
			}
			g.tiles[at][place] ^= 1
		}
		kept := g.tiles[at]
		g.tiles[at] = kept[:len(kept)-32]
		if _, err := g.tree(size).Tile(Tile{at.Level, at.Number, len(kept) / 32}); !errors.Is(err, ErrInconsistent) {
			t.Errorf("a tile that is too short: %v", err)
		}
		g.tiles[at] = kept
	}
	if _, err := g.tree(size).Inclusion(3, g.leaves[4]); !errors.Is(err, ErrInconsistent) {
		t.Errorf("another leaf: %v", err)
	}
	if _, err := LoadEdge(size, g.roots[size], func([]Tile) ([][]byte, error) { return nil, errors.ErrUnsupported }); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("a failure to read: %v", err)
	}
}

// Every partial width of a tile is the beginning of the tile.
func TestPartialTiles(t *testing.T) {
	t.Parallel()
	g := newGrown()
	g.grow(t, 300)
	for _, width := range []int{1, 43, 44} {
		data, err := g.tree(300).Tile(Tile{0, 1, width})
		if err != nil || string(data) != string(g.tiles[Tile{Level: 0, Number: 1}][:32*width]) {
			t.Errorf("width %d: %d bytes, %v", width, len(data), err)
		}
	}
	if _, err := g.tree(300).Tile(Tile{0, 1, 45}); err == nil {
		t.Error("a tile that the tree does not have yet")
	}
}

// A tile has one path, and nothing else is taken for it.
func TestTilePaths(t *testing.T) {
	t.Parallel()
	for path, tile := range map[string]Tile{
		"tile/0/000":              {0, 0, 256},
		"tile/0/255.p/1":          {0, 255, 1},
		"tile/1/x001/x234/067":    {1, 1234067, 256},
		"tile/7/x001/234.p/255":   {7, 1234, 255},
		"tile/2/x999/x999/999.p/": {},
		"tile/8/000":              {},
		"tile/00/000":             {},
		"tile/-1/000":             {},
		"tile/0/00":               {},
		"tile/0/0000":             {},
		"tile/0/x000/000":         {},
		"tile/0/x1/000":           {},
		"tile/0/000.p/0":          {},
		"tile/0/000.p/01":         {},
		"tile/0/000.p/256":        {},
		"tile/0/000.p/1/":         {},
		"tile/data/000":           {},
		"tile/entries/000":        {},
		"tile/0/000/":             {},
		"tile/8/0/000":            {},
		"tile/0/" + strings.Repeat("x999/", 20) + "999": {},
		"": {},
	} {
		read, ok := ParseTilePath(path)
		if ok != (tile != Tile{}) || ok && (read != tile || tile.Path() != path) {
			t.Errorf("%s: read %+v, %t", path, read, ok)
		}
	}
	for tile, within := range map[Tile]bool{
		{0, 0, 256}: true, {0, 1, 44}: true, {0, 1, 45}: false, {0, 1, 256}: false, {1, 0, 1}: true, {1, 0, 2}: false, {2, 0, 1}: false,
		{0, 1 << 60, 1}: false, {7, 1 << 60, 1}: false,
	} {
		if tile.Within(300) != within {
			t.Errorf("%+v: within 300: %t", tile, !within)
		}
	}
}

// A checkpoint has one text, which opens under each key that has signed it and under no
// other, and only as one of its own log. Its signature lines have one spelling.
func TestCheckpoints(t *testing.T) {
	t.Parallel()
	keys := make([]ed25519.PrivateKey, 3)
	public := make([]ed25519.PublicKey, len(keys))
	for i := range keys {
		keys[i] = ed25519.NewKeyFromSeed(fmt.Appendf(nil, "a seed of 32 bytes for a test, %d", i))
		public[i] = keys[i].Public().(ed25519.PublicKey)
	}
	id, ok := ParseLogID("000102030405060708090a0b0c0d0e0f")
	if !ok {
		t.Fatal("an id was refused")
	}
	origin := Origin("countersign.example.com", id)
	c := Checkpoint{Origin: origin, Size: 5, Root: LeafHash([]byte("root"))}
	sign := func(i int) func([]byte) ([]byte, error) {
		return func(message []byte) ([]byte, error) { return ed25519.Sign(keys[i], message), nil }
	}
	signed, err := Sign(c, Signer(origin, public[0], sign(0)), Signer(origin, public[1], sign(1)))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(string(signed), "countersign.example.com/000102030405060708090a0b0c0d0e0f\n5\n") {
		t.Errorf("signed: %s", signed)
	}
	for i := range keys {
		verifier, err := Verifier(origin, public[i])
		if err != nil {
			t.Fatal(err)
		}
		opened, verified, err := Open(signed, origin, verifier)
		if (err == nil) != (i < 2) || i < 2 && (opened != c || len(verified) != 1) {
			t.Errorf("key %d: %+v, %v", i, opened, err)
		}
		if _, _, err := Open(signed, origin+"x", verifier); !errors.Is(err, ErrNotACheckpoint) {
			t.Errorf("under another origin: %v", err)
		}
	}
	// Two bits of a line mean nothing, and verifiers refuse a checkpoint with another spelling.
	line := signed[bytes.LastIndex(signed, []byte("— ")):]
	other := bytes.Clone(line)
	const letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
	last := &other[len(other)-len("A=\n")]
	*last = letters[strings.IndexByte(letters, *last)|1]
	verifier, err := Verifier(origin, public[1])
	if err != nil {
		t.Fatal(err)
	}
	for name, spelled := range map[string][]byte{
		"a line":         append(bytes.TrimSuffix(bytes.Clone(signed), line), other...),
		"a second line":  append(bytes.Clone(signed), other...),
		"another's line": append(bytes.Clone(signed), bytes.ReplaceAll(other, []byte(origin), []byte("witness"))...),
	} {
		if _, _, err := Open(spelled, origin, verifier); !errors.Is(err, ErrNotACheckpoint) {
			t.Errorf("%s in another spelling: %v", name, err)
		}
	}
	if _, err := Sign(c, Signer("other", public[0], sign(0))); err == nil {
		t.Error("a key of another name signed")
	}
	for _, text := range []string{
		"", "o\n1\n", "o\n01\n" + c.Root.String() + "\n", "o\n-1\n" + c.Root.String() + "\n", "o\n1\nAAAA\n", "o\n1\n" + c.Root.String(),
		"o\n1\n" + c.Root.String() + "\nextension\n", "o\n9223372036854775808\n" + c.Root.String() + "\n",
	} {
		if _, err := ParseCheckpoint(text); err == nil {
			t.Errorf("%q was read", text)
		}
	}
}

// An instance name can stand in an origin, and an id has one form.
func TestNames(t *testing.T) {
	t.Parallel()
	for name, valid := range map[string]bool{
		"countersign": true, "a": true, "log.example.com:8443/eu": true, "": false, "a b": false, "a+b": false, "a\nb": false, "/a": false,
		"a/": false, "ä": false, strings.Repeat("a", 129): false,
	} {
		if (CheckInstanceName(name) == nil) != valid {
			t.Errorf("%q: valid %t", name, !valid)
		}
	}
	for _, text := range []string{"", "00", strings.Repeat("0", 33), strings.Repeat("A", 32), strings.Repeat("g", 32)} {
		if _, ok := ParseLogID(text); ok {
			t.Errorf("%q is an id", text)
		}
	}
}
