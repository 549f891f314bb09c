package console

import (
	"strconv"
	"strings"

	"countersign/internal/canon"
)

// field is a member of a JSON document as a person reads it: a name with a text, or with
// the fields inside it.
type field struct {
	Name   string
	Text   string
	Within []field
}

const (
	// mostFields bounds how many fields a page lays out. A document with more is shown as
	// JSON.
	mostFields = 1000
	// deepestField bounds how far fields are laid out within fields. What is below stands
	// there as JSON.
	deepestField = 6
)

// fieldsOf lays out an object as fields, nothing left out; nil where it is no object, is
// too large, or has too many fields.
func fieldsOf(object []byte, longest int) []field {
	if len(object) > longest {
		return nil
	}
	v, err := canon.Parse(object)
	if err != nil || v.Kind() != canon.Object {
		return nil
	}
	left := mostFields
	fields := layOutFields(v, &left, 1)
	if left < 0 {
		return nil
	}
	return fields
}

func layOutFields(v canon.Value, left *int, depth int) (fields []field) {
	add := func(name string, value canon.Value) {
		if *left--; *left < 0 {
			return
		}
		f := field{Name: visible(name)}
		if depth < deepestField {
			f.Within = layOutFields(value, left, depth+1)
		}
		if f.Within == nil {
			f.Text = visible(fieldText(value))
		}
		fields = append(fields, f)
	}
	for _, m := range v.Members() {
		add(m.Name, m.Value)
	}
	for i, item := range v.Items() {
		add(strconv.Itoa(i+1), item)
	}
	return fields
}

// fieldText writes a value. A text stands there as it is, but where it could be taken for
// something else: for a number, for nothing at all, or for one without the space around it.
func fieldText(v canon.Value) string {
	if v.Kind() != canon.String {
		return string(v.Append(nil))
	}
	text := v.Str()
	if _, err := canon.Parse([]byte(text)); err == nil || text == "" || strings.TrimSpace(text) != text {
		return string(canon.AppendString(nil, text))
	}
	return text
}
