package policy

import (
	"sort"
	"unicode/utf8"

	"countersign/internal/canon"
)

// source is a document and where its lines begin.
type source struct {
	data   string
	starts []int

	// The last answer of offset. Asked in the order of the document, as it is, it
	// then walks each line once, however many values stand on it.
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

// isBreak knows the breaks that the YAML reader counts as lines.
func isBreak(r rune) bool {
	return r == '\n' || r == '\r' || r == '\u0085' || r == '\u2028' || r == '\u2029'
}

// position turns a byte into a line and a column, both from 1.
func (t *source) position(offset int) (line, column int) {
	offset = min(offset, len(t.data))
	line = sort.SearchInts(t.starts, offset+1)
	return line, 1 + utf8.RuneCountInString(t.data[t.starts[line-1]:offset])
}

// offset turns a line and a column into a byte, the nearest there is.
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

// node is a value of a document with its place: what JSON and YAML have in
// common, so that everything behind it is written once.
type node struct {
	kind    canon.Kind
	value   string // of a string; the literal of any other scalar
	start   int    // byte of the document
	quoting quoting
	items   []*node
	members []member
}

type member struct {
	name, value *node
}

// get returns the member with that name, nil if there is none.
func (n *node) get(name string) *node {
	for _, m := range n.members {
		if m.name.value == name {
			return m.value
		}
	}
	return nil
}
