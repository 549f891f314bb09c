package canon

import (
	"strings"
	"sync"
)

// usualChildren is how many items are collected on the stack before the heap is used.
const usualChildren = 8

// pooledMembers is how many members the pooled slices have room for. An event's record has
// close to 40.
const pooledMembers = 64

// memberPool holds empty slices for reader.members.
var memberPool = sync.Pool{New: func() any { return new(make([]Member, 0, pooledMembers)) }}

// reader is one pass over one text. Its methods start at pos and leave pos
// behind what they read.
type reader struct {
	text      string
	pos       int
	unescaped []byte   // reused from string to string
	members   []Member // of the unfinished objects, the outermost object's first
	anyNumber bool     // accept inexact numbers: only the grammar is of interest
}

func (r *reader) document() (v Value, fault *Error) {
	pooled := memberPool.Get().(*[]Member)
	r.members = *pooled
	r.skipSpace()
	if fault = r.value(&v, 0); fault != nil {
		return Value{}, fault
	}
	r.skipSpace()
	if r.pos < len(r.text) {
		return Value{}, r.fault(reasonTrailing)
	}
	if cap(r.members) == pooledMembers {
		memberPool.Put(pooled)
	}
	return v, nil
}

// value reads one value into v, which must be null: filling values in place
// saves copying each of them twice. depth counts the arrays and objects around.
func (r *reader) value(v *Value, depth int) (fault *Error) {
	switch c := r.peek(); c {
	case '"':
		v.kind = String
		v.str, fault = r.stringLiteral()
		return fault
	case '{', '[':
		if depth == MaxDepth {
			return &Error{Offset: r.pos, Reason: reasonDepth, WellFormed: true}
		}
		if c == '{' {
			return r.object(v, depth+1)
		}
		return r.array(v, depth+1)
	case '-', '0', '1', '2', '3', '4', '5', '6', '7', '8', '9':
		v.kind = Number
		v.number, fault = r.number()
		return fault
	case 't':
		*v = BoolValue(true)
		return r.word("true")
	case 'f':
		*v = BoolValue(false)
		return r.word("false")
	case 'n':
		return r.word("null")
	default:
		return r.fault(reasonValue)
	}
}

func (r *reader) word(word string) *Error {
	if !strings.HasPrefix(r.text[r.pos:], word) {
		return r.fault(reasonValue)
	}
	r.pos += len(word)
	return nil
}

func (r *reader) array(v *Value, depth int) *Error {
	v.kind = Array
	r.pos++
	if r.skipSpace(); r.take(']') {
		return nil
	}
	var usual [usualChildren]Value
	items := usual[:0]
	for {
		items = append(items, Value{})
		last := len(items) - 1
		if fault := r.value(&items[last], depth); fault != nil {
			return fault.underItem(last)
		}
		if r.skipSpace(); r.take(']') {
			break
		}
		if !r.take(',') {
			return r.fault(reasonNextItem)
		}
		r.skipSpace()
	}
	v.children = &children{items: exactCopy(items)}
	return nil
}

func (r *reader) object(v *Value, depth int) *Error {
	v.kind = Object
	start := r.pos
	r.pos++
	if r.skipSpace(); r.take('}') {
		return nil
	}
	first := len(r.members)
	var value Value
	for {
		name, fault := r.name()
		if fault != nil {
			return fault
		}
		value = Value{}
		if fault := r.value(&value, depth); fault != nil {
			return fault.under(name)
		}
		r.members = append(r.members, Member{Name: name, Value: value})
		if r.skipSpace(); r.take('}') {
			break
		}
		if !r.take(',') {
			return r.fault(reasonNextMember)
		}
		r.skipSpace()
	}
	members := r.members[first:]
	if name, duplicate := sortMembers(members); duplicate {
		return (&Error{Offset: start, Reason: reasonDuplicate}).under(name)
	}
	v.children = &children{members: exactCopy(members)}
	clear(members) // the pool must not keep what was parsed in memory
	r.members = r.members[:first]
	return nil
}

// name reads a member's name and everything up to its value.
func (r *reader) name() (string, *Error) {
	if r.peek() != '"' {
		return "", r.fault(reasonName)
	}
	name, fault := r.stringLiteral()
	if fault != nil {
		return "", fault
	}
	if r.skipSpace(); !r.take(':') {
		return "", r.fault(reasonColon)
	}
	r.skipSpace()
	return name, nil
}

// peek returns 0 at the end. A NUL in the text looks the same, and is refused
// wherever peek is used.
func (r *reader) peek() byte {
	if r.pos < len(r.text) {
		return r.text[r.pos]
	}
	return 0
}

func (r *reader) take(c byte) bool {
	if r.pos < len(r.text) && r.text[r.pos] == c {
		r.pos++
		return true
	}
	return false
}

func (r *reader) skipSpace() {
	for r.pos < len(r.text) {
		switch r.text[r.pos] {
		case ' ', '\n', '\t', '\r':
			r.pos++
		default:
			return
		}
	}
}

// fault blames the byte at pos, or the end of the text if that is where pos is.
func (r *reader) fault(reason string) *Error {
	if r.pos >= len(r.text) {
		reason = reasonEnd
	}
	return &Error{Offset: r.pos, Reason: reason}
}
