package console

import (
	"strconv"
	"strings"

	"countersign/internal/canon"
)

// field is a member of a JSON document, formatted for people: a name with a text or with nested
// fields.
type field struct {
	Name   string
	Text   string
	Within []field
}

const (
	// maxFields is the maximum number of fields on a page. A document with more is shown as JSON.
	maxFields = 1000
	// maxFieldDepth is the maximum nesting of fields. Deeper values are shown as JSON.
	maxFieldDepth = 6
)

// fieldsOf returns all members of an object as fields. It returns nil if the document is not an object,
// is longer than longest bytes, or has too many fields.
func fieldsOf(object []byte, longest int) []field {
	if len(object) > longest {
		return nil
	}
	v, err := canon.Parse(object)
	if err != nil || v.Kind() != canon.Object {
		return nil
	}
	left := maxFields
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
		if depth < maxFieldDepth {
			f.Within = layOutFields(value, left, depth+1)
		}
		if f.Within == nil {
			f.Text = visible(fieldText(value))
		}
		fields = append(fields, f)
	}
	for _, m := range v.Members() {
		add(quoteBlank(m.Name), m.Value)
	}
	for i, item := range v.Items() {
		add(strconv.Itoa(i+1), item)
	}
	return fields
}

// fieldText formats a value. A string is quoted only if it could be mistaken for something else: it
// looks like JSON, is empty, or has surrounding space.
func fieldText(v canon.Value) string {
	if v.Kind() != canon.String {
		return string(v.Append(nil))
	}
	text := v.Str()
	if _, err := canon.Parse([]byte(text)); err == nil {
		return string(canon.AppendString(nil, text))
	}
	return quoteBlank(text)
}

// quoteBlank quotes a text that is empty or has surrounding space, which a page would not show.
func quoteBlank(text string) string {
	if text == "" || strings.TrimSpace(text) != text {
		return string(canon.AppendString(nil, text))
	}
	return text
}
