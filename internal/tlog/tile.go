package tlog

import (
	"fmt"
	"strings"

	sumdb "golang.org/x/mod/sumdb/tlog"
)

const (
	// TileHeight is the height of a tile in levels of the tree: that of C2SP tlog-tiles.
	TileHeight = 8
	// TileWidth is how many hashes a full tile holds.
	TileWidth = 1 << TileHeight
	// maxLevel is the highest level of tiles that a tree can have: sizes have 63 bits.
	maxLevel = 7
)

// Tile names a tile: its level, its number there, and how many hashes it holds.
type Tile struct {
	Level  int
	Number int64
	Width  int // 1 to TileWidth
}

// Path is where a tile stands below its log: C2SP tlog-tiles.
func (t Tile) Path() string {
	// The library's path names the height as well.
	_, path, _ := strings.Cut(t.library().Path(), "/8/")
	return "tile/" + path
}

// ParseTilePath reads what Path writes, and nothing else.
func ParseTilePath(path string) (Tile, bool) {
	const longest = 64 // bytes; 7 levels and a number of 19 digits take less
	rest, ok := strings.CutPrefix(path, "tile/")
	if !ok || len(path) > longest {
		return Tile{}, false
	}
	read, err := sumdb.ParseTilePath(fmt.Sprintf("tile/%d/%s", TileHeight, rest))
	if err != nil || read.H != TileHeight || read.L < 0 || read.L > maxLevel {
		return Tile{}, false
	}
	t := Tile{Level: read.L, Number: read.N, Width: read.W}
	return t, t.Path() == path
}

// Within reports whether a tree of that size has the tile's hashes.
func (t Tile) Within(size int64) bool {
	if t.Level < 0 || t.Level > maxLevel || t.Number < 0 || t.Width < 1 || t.Width > TileWidth {
		return false
	}
	hashes := size >> (TileHeight * t.Level)
	return t.Number <= hashes>>TileHeight && t.Number<<TileHeight+int64(t.Width) <= hashes
}

func (t Tile) library() sumdb.Tile {
	return sumdb.Tile{H: TileHeight, L: t.Level, N: t.Number, W: t.Width}
}

// TileReader reads tiles from where they are stored. What it returns may hold more hashes
// than were asked for, and is not believed.
type TileReader func(tiles []Tile) ([][]byte, error)
