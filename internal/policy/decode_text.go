package policy

import (
	"net/url"
	"strings"
	"unicode"
	"unicode/utf8"

	"countersign/internal/canon"
)

// isA reports whether n has the kind, and otherwise refuses it.
func (d *decoder) isA(n *node, kind canon.Kind, otherwise string) bool {
	if n.kind != kind {
		d.refuse(n, "%s", otherwise)
	}
	return n.kind == kind
}

// require refuses an object that lacks one of the fields.
func (d *decoder) require(n *node, fields ...string) {
	for _, field := range fields {
		if n.get(field) == nil {
			d.refuse(n, "%s is missing", field)
		}
	}
}

// prose reads a text for people with 1 to limit characters.
func (d *decoder) prose(n *node, field string, limit int) string {
	if !d.isA(n, canon.String, field+" must be a string: put it in quotes") {
		return ""
	}
	if count := utf8.RuneCountInString(n.value); count == 0 || count > limit {
		d.refuse(n, "%s must have 1 to %d characters, and has %d", field, limit, count)
		return ""
	}
	return n.value
}

// line reads a name. Names appear in reasons, logs and lists, where line breaks and blanks at the
// ends would make one name look like another.
func (d *decoder) line(n *node, field string, limit int) string {
	value := d.prose(n, field, limit)
	if strings.TrimSpace(value) != value || strings.ContainsFunc(value, unicode.IsControl) {
		d.refuse(n, "%s must be one line, without blanks around it", field)
	}
	return value
}

// link reads a URL that people will be asked to follow.
func (d *decoder) link(n *node, field string) string {
	value := d.line(n, field, maxURL)
	if value == "" {
		return ""
	}
	address, err := url.Parse(value)
	if err != nil || address.Host == "" || address.Scheme != "https" && address.Scheme != "http" {
		d.refuse(n, "%s must be a web address: https://…", field)
	}
	return value
}
