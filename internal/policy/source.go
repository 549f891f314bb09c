package policy

import (
	"sort"
	"unicode/utf8"

	"countersign/internal/canon"
)

// source is a document with the offsets of its lines.
type source struct {
	data   string
	starts []int

	// The last result of offset. The calls come in the order of the document, so this walks each
	// line once, however many values are on it.
	line, column, at int
}

func newSource(document []byte) *source {
	t := &source{data: string(document), starts: []int{0}}
	for i := 0; i < len(t.data); {
		r, width := utf8.DecodeRuneInString(t.data[i:])
		i += width
		if r == '\r' && i < len(t.data) && t.data[i] == '\n' {
			continue
		}
		if isBreak(r) {
			t.starts = append(t.starts, i)
		}
	}
	return t
}

// isBreak reports whether r is a line break for the YAML reader.
func isBreak(r rune) bool {
	return r == '\n' || r == '\r' || r == '\u0085' || r == '\u2028' || r == '\u2029'
}

// position converts a byte offset to a line and a column, both counted from 1.
func (t *source) position(offset int) (line, column int) {
	offset = min(offset, len(t.data))
	line = sort.SearchInts(t.starts, offset+1)
	return line, 1 + utf8.RuneCountInString(t.data[t.starts[line-1]:offset])
}

// offset converts a line and a column to the nearest byte offset.
func (t *source) offset(line, column int) int {
	line = max(1, min(line, len(t.starts)))
	if line != t.line || column < t.column {
		t.line, t.column, t.at = line, 1, t.starts[line-1]
	}
	for t.column < column && t.at < len(t.data) {
		_, width := utf8.DecodeRuneInString(t.data[t.at:])
		t.at += width
		t.column++
	}
	return t.at
}

// quoting is how a string is written in a document.
type quoting uint8

const (
	plain quoting = iota
	singleQuoted
	doubleQuoted
	block
)

// node is a value of a document with its place. It covers what JSON and YAML have in common, so
// that everything after it is written once.
type node struct {
	kind    canon.Kind
	value   string // content of a string; literal of any other scalar
	start   int    // byte offset in the document
	quoting quoting
	items   []*node
	members []member
}

type member struct {
	name, value *node
}

// get returns the member with the name, or nil.
func (n *node) get(name string) *node {
	for _, m := range n.members {
		if m.name.value == name {
			return m.value
		}
	}
	return nil
}
