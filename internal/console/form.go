package console

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"unicode/utf8"

	"countersign/internal/canon"
	"countersign/internal/fault"
	"countersign/internal/problem"
)

const (
	// maxForm is the maximum size of a form with a few names or ids, in bytes.
	maxForm = 4 << 10
	// maxText is the maximum size of a form with longer texts or lists, in bytes. The encoding of a form
	// takes up to three bytes for each byte of text, and six for the end of a line.
	maxText = 256 << 10
)

// form is a form that a browser sent.
type form struct{ values url.Values }

// form reads the form that was sent, of at most so many bytes. One that is larger than maxText is
// read only if its length is known, and in a slot of its organization, because it takes memory.
func (v *visit) form(most int64) (form, error) {
	switch {
	case v.r.ContentLength > most:
		return form{}, formTooLarge(most)
	case v.r.ContentLength > maxText:
		var err error
		if v.endRead, err = v.console.limits.Read(v.r.Context(), v.caller); err != nil {
			return form{}, err
		}
	}
	most = min(most, max(maxText, v.r.ContentLength))
	whole := v.r.Body
	v.r.Body = http.MaxBytesReader(v.w, whole, most)
	err := v.r.ParseForm()
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		v.r.Body = whole // so that the rest can be drained
		return form{}, formTooLarge(most)
	case err != nil:
		return form{}, errBadForm
	}
	for _, values := range v.r.PostForm {
		for _, value := range values {
			if !utf8.ValidString(value) {
				return form{}, errBadForm
			}
		}
	}
	return form{v.r.PostForm}, nil
}

func formTooLarge(most int64) error {
	return fault.Errorf(fault.CodeTooLarge, "the form is larger than %d bytes; go back and shorten it", most)
}

var errBadForm = fault.Errorf(fault.CodeInvalid, "the form cannot be read; go back and fill it in again")

// text returns a field without surrounding space, and with the line endings of browsers replaced.
func (f form) text(name string) string {
	return strings.TrimSpace(strings.ReplaceAll(f.values.Get(name), "\r\n", "\n"))
}

// lines returns the non-empty lines of a field. The result is never nil.
func (f form) lines(name string) []string {
	lines := []string{}
	for line := range strings.Lines(f.text(name)) {
		if line = strings.TrimSpace(line); line != "" {
			lines = append(lines, line)
		}
	}
	return lines
}

// request builds the body of the corresponding API request, so that forms are validated by the same
// rules.
func request(members map[string]any) (canon.Value, error) {
	text, err := json.Marshal(members)
	if err != nil {
		return canon.Value{}, fmt.Errorf("encode a form: %w", err)
	}
	v, err := canon.Parse(text)
	if err != nil {
		return canon.Value{}, fault.Errorf(fault.CodeInvalid, "the form has a value that cannot be stored exactly: %v", err)
	}
	return v, nil
}

// optional returns null for an empty field.
func optional(text string) any {
	if text == "" {
		return nil
	}
	return text
}

// refusal is the message beside a form that was refused.
type refusal struct {
	Status int
	Lines  []string
}

// refusalOf returns the message to show beside the form. It returns nil if err is nil or is not about
// the form.
func refusalOf(err error) *refusal {
	if err == nil {
		return nil
	}
	shown, kind := problem.Of(err)
	switch kind.Status {
	case http.StatusForbidden, http.StatusConflict, http.StatusUnprocessableEntity:
	default:
		return nil
	}
	r := &refusal{Status: kind.Status}
	for _, fault := range shown.Fields {
		r.Lines = append(r.Lines, sentence(strings.TrimSpace(fieldName(fault.Pointer)+" "+fault.Detail)))
	}
	if len(r.Lines) == 0 {
		r.Lines = []string{sentence(shown.Message)}
	}
	return r
}

// fieldName turns a JSON pointer into words. People count from 1.
func fieldName(pointer string) string {
	parts := strings.Split(strings.TrimPrefix(pointer, "/"), "/")
	for i, part := range parts {
		if n, err := strconv.Atoi(part); err == nil {
			parts[i] = strconv.Itoa(n + 1)
		}
	}
	return strings.ReplaceAll(strings.Join(parts, " "), "_", " ")
}
