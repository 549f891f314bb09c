package witness

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"golang.org/x/mod/sumdb/tlog"
)

const (
	tileHeight = 8
	fullTile   = 1 << tileHeight
	// maxTiled bounds the trees that are read through tiles: far below where the
	// arithmetic of tlog overflows.
	maxTiled = 1 << 48
)

// source is where a log publishes its checkpoint and tiles, in the layout of C2SP
// tlog-tiles.
type source struct {
	base string
	http *http.Client
}

var errGone = errors.New("the log does not have it")

func (s *source) get(ctx context.Context, path string, limit int64) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, s.base+"/"+path, http.NoBody)
	if err != nil {
		return nil, err
	}
	got, err := exchange(s.http, request, limit)
	switch {
	case err != nil:
		return nil, fmt.Errorf("get %s: %w", path, err)
	case got.status == http.StatusNotFound || got.status == http.StatusGone:
		return nil, fmt.Errorf("get %s: %w", path, errGone)
	case got.status != http.StatusOK:
		return nil, fmt.Errorf("get %s: the log answered %d", path, got.status)
	}
	return got.body, nil
}

func (s *source) checkpoint(ctx context.Context) ([]byte, error) {
	return s.get(ctx, "checkpoint", maxCheckpoint)
}

// prove computes the consistency proof between two sizes of a tree from its tiles,
// which are held against the tree's root.
func (s *source) prove(ctx context.Context, tree tlog.Tree, old int64) (tlog.TreeProof, error) {
	if tree.N > maxTiled {
		return nil, errors.New("the tree is larger than 2^48: its tiles are not read")
	}
	return tlog.ProveTree(tree.N, old, tlog.TileHashReader(tree, &tiles{ctx, s}))
}

// tiles reads tiles for one proof, whose context it carries: the interface has no
// place for one.
type tiles struct {
	ctx    context.Context
	source *source
}

// Height implements tlog.TileReader.
func (*tiles) Height() int { return tileHeight }

// SaveTiles implements tlog.TileReader.
func (*tiles) SaveTiles([]tlog.Tile, [][]byte) {}

// ReadTiles implements tlog.TileReader.
func (t *tiles) ReadTiles(wanted []tlog.Tile) ([][]byte, error) {
	read := make([][]byte, len(wanted))
	for i, tile := range wanted {
		var err error
		if read[i], err = t.tile(tile); err != nil {
			return nil, err
		}
	}
	return read, nil
}

// tile reads one tile. A log may drop a partial one when the full one is there.
func (t *tiles) tile(tile tlog.Tile) ([]byte, error) {
	data, err := t.read(tile)
	if errors.Is(err, errGone) && tile.W < fullTile {
		width := tile.W
		tile.W = fullTile
		if data, fullErr := t.read(tile); fullErr == nil {
			return data[:width*tlog.HashSize], nil
		}
	}
	return data, err
}

func (t *tiles) read(tile tlog.Tile) ([]byte, error) {
	length := tile.W * tlog.HashSize
	data, err := t.source.get(t.ctx, tilePath(tile), int64(length))
	if err == nil && len(data) != length {
		err = fmt.Errorf("get %s: it has %d bytes, and not %d", tilePath(tile), len(data), length)
	}
	return data, err
}

// tilePath is a tile's path in the layout of C2SP: without the height.
func tilePath(tile tlog.Tile) string {
	return "tile/" + strings.TrimPrefix(tile.Path(), fmt.Sprintf("tile/%d/", tileHeight))
}
