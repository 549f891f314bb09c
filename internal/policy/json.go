package policy

import (
	"errors"
	"strings"

	"countersign/internal/canon"
)

// readJSON parses a JSON document. The strict parser checks it first, so that the second pass,
// which finds the places, can rely on well-formed text.
func readJSON(found *problems) *node {
	if _, err := canon.Parse([]byte(found.source.data)); err != nil {
		var fault *canon.Error
		if !errors.As(err, &fault) {
			fault = &canon.Error{Reason: err.Error()}
		}
		found.report("", fault.Offset, "not acceptable JSON: %s (at %q)", fault.Reason, fault.Pointer)
		return nil
	}
	return (&places{text: found.source.data}).value()
}

// places walks a well-formed JSON text and records the place of each value.
type places struct {
	text string
	pos  int
}

func (p *places) value() *node {
	p.skipSpace()
	n := &node{start: p.pos}
	switch p.text[p.pos] {
	case '{':
		n.kind = canon.Object
		for p.next('}') {
			name := p.value()
			p.skipSpace()
			p.pos++ // the colon
			n.members = append(n.members, member{name, p.value()})
		}
	case '[':
		n.kind = canon.Array
		for p.next(']') {
			n.items = append(n.items, p.value())
		}
	default:
		p.scalar(n)
	}
	return n
}

// next skips the opening bracket or a comma. It also skips the closing bracket, and then reports
// false.
func (p *places) next(closing byte) bool {
	p.skipSpace()
	if p.text[p.pos] != closing {
		p.pos++
		p.skipSpace()
		if p.text[p.pos] != closing {
			return true
		}
	}
	p.pos++
	return false
}

func (p *places) scalar(n *node) {
	from := p.pos
	if p.text[p.pos] == '"' {
		n.quoting = doubleQuoted
		p.pos += literalLength(p.text[p.pos:])
	} else {
		for p.pos < len(p.text) && strings.IndexByte(" \t\r\n,]}", p.text[p.pos]) < 0 {
			p.pos++
		}
	}
	literal := p.text[from:p.pos]
	v, err := canon.Parse([]byte(literal))
	if err != nil {
		panic("policy: a literal of a well-formed text: " + err.Error())
	}
	n.kind, n.value = v.Kind(), literal
	if n.kind == canon.String {
		n.value = v.Str()
	}
}

// literalLength returns the length of the string literal at the start of rest.
func literalLength(rest string) int {
	i := 1
	for rest[i] != '"' {
		if rest[i] == '\\' {
			i++
		}
		i++
	}
	return i + 1
}

func (p *places) skipSpace() {
	for p.pos < len(p.text) && strings.IndexByte(" \t\r\n", p.text[p.pos]) >= 0 {
		p.pos++
	}
}
