package console

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"unicode/utf8"

	"countersign/internal/canon"
	"countersign/internal/fault"
	"countersign/internal/problem"
)

const (
	// maxForm bounds a form of a few short fields.
	maxForm = 4 << 10
	// maxText bounds a form with a comment or with lists. A form takes up to
	// three bytes for each byte of a text.
	maxText = 256 << 10
)

// form is what a browser sent.
type form struct{ values url.Values }

func (v *visit) form(most int64) (form, error) {
	whole := v.r.Body
	v.r.Body = http.MaxBytesReader(v.w, whole, most)
	err := v.r.ParseForm()
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		v.r.Body = whole // for the rest to be drained
		return form{}, fault.Errorf(fault.CodeTooLarge, "the form holds more than %d bytes; go back and fill it in again", most)
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

var errBadForm = fault.Errorf(fault.CodeInvalid, "the form cannot be read; go back and fill it in again")

// text is a field without the space around it. Browsers end lines as no other
// text here does.
func (f form) text(name string) string {
	return strings.TrimSpace(strings.ReplaceAll(f.values.Get(name), "\r\n", "\n"))
}

// lines are the lines of a field that hold something; never nil.
func (f form) lines(name string) []string {
	lines := []string{}
	for line := range strings.Lines(f.text(name)) {
		if line = strings.TrimSpace(line); line != "" {
			lines = append(lines, line)
		}
	}
	return lines
}

// request makes of what a form says the request that the API would have got: both
// are read by the same rules.
func request(members map[string]any) (canon.Value, error) {
	text, err := json.Marshal(members)
	if err != nil {
		return canon.Value{}, fmt.Errorf("encode a form: %w", err)
	}
	v, err := canon.Parse(text)
	if err != nil {
		return canon.Value{}, fault.Errorf(fault.CodeInvalid, "the form holds a value that cannot be stored exactly: %v", err)
	}
	return v, nil
}

// optional leaves a member out of a request where the field is empty.
func optional(text string) any {
	if text == "" {
		return nil
	}
	return text
}

// refusal is what a person is told whose form was not taken.
type refusal struct {
	Status int
	Lines  []string
}

// refusalOf tells what can be shown beside the form; nil for what is no fault of
// the form, or for no error.
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

// fieldName reads a pointer for people.
func fieldName(pointer string) string {
	return strings.NewReplacer("/", " ", "_", " ").Replace(strings.TrimPrefix(pointer, "/"))
}
