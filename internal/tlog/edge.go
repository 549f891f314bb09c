package tlog

import (
	"bytes"
	"errors"
	"fmt"

	sumdb "golang.org/x/mod/sumdb/tlog"
)

// Edge is the right edge of a tree: all that is needed to add leaves and to know the root.
// It holds one unfinished tile of each level, so that growing reads nothing.
type Edge struct {
	size  int64
	tiles [maxLevel + 1][]byte // the unfinished tile of each level
	// complete has the hash of the last complete subtree of 1<<i leaves where bit i of size is set.
	complete [64]Hash
	grown    map[Tile][]byte // by level and number alone: tiles that have changed since Grown
}

// NewEdge is that of a tree without leaves.
func NewEdge() *Edge { return &Edge{grown: make(map[Tile][]byte)} }

// LoadEdge reads the edge of a tree whose size and root are known. Tiles that do not lead
// to the root are ErrInconsistent.
func LoadEdge(size int64, root Hash, read TileReader) (*Edge, error) {
	e := NewEdge()
	e.size = size
	var wanted []Tile
	for level := range e.tiles {
		if tile := edgeTile(level, size); tile.Width > 0 {
			wanted = append(wanted, tile)
		}
	}
	data, err := readTiles(read, wanted)
	if err != nil {
		return nil, err
	}
	for i, tile := range wanted {
		e.tiles[tile.Level] = data[i]
	}
	found, err := e.Root()
	if err != nil || found != root {
		return nil, errors.Join(ErrInconsistent, err)
	}
	if err := e.findComplete(); err != nil {
		return nil, err
	}
	return e, nil
}

// findComplete computes the hashes of the complete subtrees from the tiles.
func (e *Edge) findComplete() error {
	for i := range e.complete {
		if e.size>>i&1 == 0 {
			continue
		}
		hashes, err := e.ReadHashes([]int64{sumdb.StoredHashIndex(i, e.size>>i-1)})
		if err != nil {
			return err
		}
		e.complete[i] = hashes[0]
	}
	return nil
}

// edgeTile is the unfinished tile of a level; its width is 0 where the last is full.
func edgeTile(level int, size int64) Tile {
	hashes := size >> (TileHeight * level)
	return Tile{Level: level, Number: hashes >> TileHeight, Width: int(hashes % TileWidth)}
}

// Size is how many leaves the tree has.
func (e *Edge) Size() int64 { return e.size }

// Bytes is about how much memory the edge takes.
func (e *Edge) Bytes() int {
	taken := 1 << 10
	for _, tile := range e.tiles {
		taken += cap(tile)
	}
	return taken
}

// Add appends a leaf.
func (e *Edge) Add(leaf Hash) {
	hash, level := leaf, 0
	for ; e.size>>level&1 == 1; level++ { // the leaf completes a subtree of twice the size
		e.append(level, hash)
		hash = sumdb.NodeHash(e.complete[level], hash)
	}
	e.append(level, hash)
	e.complete[level] = hash
	e.size++
}

// append adds the hash of a subtree that the next leaf completes to its tile. Only every
// TileHeight-th level has tiles.
func (e *Edge) append(level int, hash Hash) {
	if level%TileHeight != 0 {
		return
	}
	number := e.size >> level >> TileHeight
	level /= TileHeight
	tile := append(e.tiles[level], hash[:]...)
	e.grown[Tile{Level: level, Number: number}] = tile
	if len(tile) == TileWidth*sumdb.HashSize {
		tile = nil // full: the level above has its hash
	}
	e.tiles[level] = tile
}

// Root is the root of the tree.
func (e *Edge) Root() (Hash, error) { return sumdb.TreeHash(e.size, e) }

// GrownTile is a tile with the hashes that it has by now.
type GrownTile struct {
	Tile
	Hashes []byte
}

// Grown returns the tiles that have changed since it was last called.
func (e *Edge) Grown() []GrownTile {
	tiles := make([]GrownTile, 0, len(e.grown))
	for tile, hashes := range e.grown {
		tile.Width = len(hashes) / sumdb.HashSize
		tiles = append(tiles, GrownTile{tile, bytes.Clone(hashes)})
	}
	clear(e.grown)
	return tiles
}

// ReadHashes implements the library's HashReader for the hashes that growing needs.
func (e *Edge) ReadHashes(indexes []int64) ([]sumdb.Hash, error) {
	hashes := make([]sumdb.Hash, len(indexes))
	for i, index := range indexes {
		tile := sumdb.TileForIndex(TileHeight, index)
		if tile.L > maxLevel || tile.N != edgeTile(tile.L, e.size).Number {
			return nil, fmt.Errorf("%w: hash %d is not at the edge", ErrInconsistent, index)
		}
		data := e.tiles[tile.L]
		tile.W = len(data) / sumdb.HashSize
		var err error
		if hashes[i], err = sumdb.HashFromTile(tile, data, index); err != nil {
			return nil, fmt.Errorf("%w: %w", ErrInconsistent, err)
		}
	}
	return hashes, nil
}
