package tlog

import (
	"bytes"
	"fmt"

	sumdb "golang.org/x/mod/sumdb/tlog"
)

// Tree is a tree whose size and root are known. All that it returns has been held against
// the root.
type Tree struct {
	size  int64
	root  Hash
	tiles TileReader
}

// NewTree is the tree with that root, whose tiles are read from somewhere.
func NewTree(size int64, root Hash, tiles TileReader) *Tree { return &Tree{size, root, tiles} }

// Size is how many leaves the tree has.
func (t *Tree) Size() int64 { return t.size }

// Inclusion proves that the leaf stands at an index, which begins with 0. A leaf that does
// not is ErrInconsistent.
func (t *Tree) Inclusion(index int64, leaf Hash) ([]Hash, error) {
	if index < 0 || index >= t.size {
		return nil, fmt.Errorf("a log of %d leaves has none at %d", t.size, index)
	}
	source := &tileSource{read: t.tiles}
	proof, err := sumdb.ProveRecord(t.size, index, t.reader(source))
	if err != nil {
		return nil, source.explain(err)
	}
	if err := sumdb.CheckRecord(proof, t.size, t.root, index, leaf); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInconsistent, err)
	}
	return proof, nil
}

// Consistency proves that the tree begins with an older one, whose root it returns. That
// one has a leaf at least.
func (t *Tree) Consistency(older int64) (proof []Hash, root Hash, err error) {
	if older < 1 || older > t.size {
		return nil, Hash{}, fmt.Errorf("a log of %d leaves did not have %d before", t.size, older)
	}
	source := &tileSource{read: t.tiles}
	reader := t.reader(source)
	if proof, err = sumdb.ProveTree(t.size, older, reader); err == nil {
		root, err = sumdb.TreeHash(older, reader)
	}
	if err != nil {
		return nil, Hash{}, source.explain(err)
	}
	if err := sumdb.CheckTree(proof, t.size, t.root, older, root); err != nil {
		return nil, Hash{}, fmt.Errorf("%w: %w", ErrInconsistent, err)
	}
	return proof, root, nil
}

// Tile is the content of a tile that the tree has.
func (t *Tree) Tile(tile Tile) ([]byte, error) {
	if !tile.Within(t.size) {
		return nil, fmt.Errorf("a log of %d leaves has no %s", t.size, tile.Path())
	}
	source := &tileSource{read: t.tiles}
	data, err := sumdb.ReadTileData(tile.library(), t.reader(source))
	return data, source.explain(err)
}

// Edge is the tree's right edge, to which leaves can be added.
func (t *Tree) Edge() (*Edge, error) { return LoadEdge(t.size, t.root, t.tiles) }

func (t *Tree) reader(source *tileSource) sumdb.HashReader {
	return sumdb.TileHashReader(sumdb.Tree{N: t.size, Hash: t.root}, source)
}

// tileSource is what the library reads tiles from. It remembers why reading failed, to
// tell that from hashes that are wrong.
type tileSource struct {
	read   TileReader
	failed error
}

func (s *tileSource) Height() int { return TileHeight }

func (s *tileSource) SaveTiles([]sumdb.Tile, [][]byte) {}

func (s *tileSource) ReadTiles(wanted []sumdb.Tile) ([][]byte, error) {
	tiles := make([]Tile, len(wanted))
	for i, tile := range wanted {
		tiles[i] = Tile{Level: tile.L, Number: tile.N, Width: tile.W}
	}
	data, err := readTiles(s.read, tiles)
	s.failed = err
	return data, err
}

func (s *tileSource) explain(err error) error {
	switch {
	case err == nil:
		return nil
	case s.failed != nil:
		return s.failed
	}
	return fmt.Errorf("%w: %w", ErrInconsistent, err)
}

// readTiles reads tiles and cuts them to the width that was asked for.
func readTiles(read TileReader, tiles []Tile) ([][]byte, error) {
	if len(tiles) == 0 {
		return nil, nil
	}
	data, err := read(tiles)
	if err != nil {
		return nil, err
	}
	if len(data) != len(tiles) {
		return nil, fmt.Errorf("read %d tiles of %d", len(data), len(tiles))
	}
	for i, tile := range tiles {
		length := tile.Width * sumdb.HashSize
		if len(data[i]) < length {
			return nil, fmt.Errorf("%w: %s has %d bytes of %d", ErrInconsistent, tile.Path(), len(data[i]), length)
		}
		data[i] = bytes.Clone(data[i][:length])
	}
	return data, nil
}
