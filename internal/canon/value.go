package canon

import (
	"math"
	"slices"
	"unicode/utf8"
)

// Kind is the type of a JSON value.
type Kind uint8

// The six kinds of JSON values.
const (
	Null Kind = iota
	Bool
	Number
	String
	Array
	Object
)

// Value is an immutable JSON value. The zero Value is null.
type Value struct {
	kind     Kind
	number   float64 // of a Number; 1 for true
	str      string
	children *children // nil for an empty array or object
}

// children stands behind a pointer to keep Value small: most values are
// scalars, and values are copied a lot.
type children struct {
	items   []Value
	members []Member
}

// Member is one name and value of an object.
type Member struct {
	Name  string
	Value Value
}

// Kind returns the value's type.
func (v Value) Kind() Kind { return v.kind }

// IsNull reports whether the value is null.
func (v Value) IsNull() bool { return v.kind == Null }

// Bool returns the value of a Bool, and false for any other kind.
func (v Value) Bool() bool { return v.kind == Bool && v.number != 0 }

// Float returns the value of a Number, and 0 for any other kind.
func (v Value) Float() float64 {
	if v.kind != Number {
		return 0
	}
	return v.number
}

// Int returns the value of a Number that is an integer within ±2^53, the range
// in which a double tells all integers apart.
func (v Value) Int() (int64, bool) {
	if v.kind != Number || math.Abs(v.number) > maxInt || v.number != math.Trunc(v.number) {
		return 0, false
	}
	return int64(v.number), true
}

// Str returns the value of a String, and "" for any other kind.
func (v Value) Str() string { return v.str }

// Items returns the items of an Array, nil for any other kind. The caller must
// not modify them.
func (v Value) Items() []Value {
	if v.children == nil {
		return nil
	}
	return v.children.items
}

// Members returns the members of an Object in canonical order, nil for any
// other kind. The caller must not modify them.
func (v Value) Members() []Member {
	if v.children == nil {
		return nil
	}
	return v.children.members
}

// Get returns the member of an Object with that name.
func (v Value) Get(name string) (Value, bool) {
	members := v.Members()
	i, found := slices.BinarySearchFunc(members, name, func(m Member, name string) int {
		return compareNames(m.Name, name)
	})
	if !found {
		return Value{}, false
	}
	return members[i].Value, true
}

// NullValue returns null.
func NullValue() Value { return Value{} }

// BoolValue returns true or false.
func BoolValue(b bool) Value {
	if b {
		return Value{kind: Bool, number: 1}
	}
	return Value{kind: Bool}
}

// NumberValue returns a number. NaN and the infinities have no JSON form and
// are refused; negative zero becomes zero, as it is written.
func NumberValue(f float64) (Value, error) {
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return Value{}, &Error{Reason: reasonNotFinite}
	}
	return Value{kind: Number, number: positiveZero(f)}, nil
}

// positiveZero drops the sign of negative zero, which has no canonical form.
func positiveZero(f float64) float64 {
	if f == 0 {
		return 0
	}
	return f
}

// StringValue returns a string, which must be valid UTF-8.
func StringValue(s string) (Value, error) {
	if !utf8.ValidString(s) {
		return Value{}, &Error{Reason: reasonUTF8}
	}
	return Value{kind: String, str: s}, nil
}

// ArrayValue returns an array of a copy of the items.
func ArrayValue(items ...Value) Value {
	v := Value{kind: Array}
	if len(items) > 0 {
		v.children = &children{items: exactCopy(items)}
	}
	return v
}

// ObjectValue returns an object of a copy of the members, given in any order.
// Duplicate names and names that are not valid UTF-8 are refused.
func ObjectValue(members ...Member) (Value, error) {
	for _, m := range members {
		if !utf8.ValidString(m.Name) {
			return Value{}, &Error{Reason: reasonUTF8}
		}
	}
	sorted := exactCopy(members)
	if name, duplicate := sortMembers(sorted); duplicate {
		return Value{}, (&Error{Reason: reasonDuplicate}).under(name)
	}
	v := Value{kind: Object}
	if len(sorted) > 0 {
		v.children = &children{members: sorted}
	}
	return v, nil
}

// exactCopy has no spare capacity, which slices.Clone may leave: a document of
// many tiny arrays must not cost a multiple of its size.
func exactCopy[T any](s []T) []T {
	c := make([]T, len(s))
	copy(c, s)
	return c
}
