package httpapi

import (
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"

	"countersign/internal/fault"
	"countersign/internal/ledger"
)

// Lists are paged with opaque cursors. A cursor is the position of the last entry of a page.
const (
	defaultLimit = 50  // entries
	maxLimit     = 200 // entries
	maxFilter    = 200 // characters
	maxFaults    = 50  // that an answer lists, of the thousands that a query can have
)

// listQuery reads query parameters and collects what is wrong with them.
type listQuery struct {
	values url.Values
	faults []fault.FieldError
}

// query returns the query of a route that answers in pages. known are the names of its parameters
// besides limit and cursor; any other parameter is a fault.
func (x *exchange) query(known ...string) *listQuery {
	return x.parameters(append(known, "limit", "cursor")...)
}

func (x *exchange) parameters(known ...string) *listQuery {
	return x.parametersMatching(func(string) (string, bool) { return "", false }, known...)
}

// parametersMatching is parameters for a route that also accepts names of the given form.
func (x *exchange) parametersMatching(form func(name string) (string, bool), known ...string) *listQuery {
	q := &listQuery{}
	values, err := url.ParseQuery(x.r.URL.RawQuery)
	if err != nil {
		q.fault("", "the query string cannot be read")
	}
	q.values = values
	for name, given := range values {
		_, formed := form(name)
		switch {
		case !formed && !slices.Contains(known, name):
			q.fault(name, "is not a known parameter")
		case len(given) > 1:
			q.fault(name, "must be given once")
		case given[0] == "":
			q.fault(name, "must not be empty")
		}
	}
	slices.SortFunc(q.faults, func(a, b fault.FieldError) int { return strings.Compare(a.Pointer, b.Pointer) })
	return q
}

func (q *listQuery) fault(name, detail string) {
	if len(name) > 100 {
		name = "…"
	}
	q.faults = append(q.faults, fault.FieldError{Pointer: "/" + name, Detail: detail})
}

func (q *listQuery) limit() int {
	text := q.values.Get("limit")
	if text == "" {
		return defaultLimit
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > maxLimit {
		q.fault("limit", "must be an integer from 1 to 200")
		return defaultLimit
	}
	return n
}

func (q *listQuery) text(name string) string {
	text := q.values.Get(name)
	switch {
	case utf8.RuneCountInString(text) > maxFilter:
		q.fault(name, "must have at most 200 characters")
	case !utf8.ValidString(text) || strings.ContainsRune(text, 0):
		q.fault(name, "must be UTF-8 without the character U+0000")
	default:
		return text
	}
	return ""
}

// boolean reads true or false. It returns false if the parameter is missing.
func (q *listQuery) boolean(name string) bool {
	switch q.values.Get(name) {
	case "true":
		return true
	case "", "false":
	default:
		q.fault(name, "must be true or false")
	}
	return false
}

func (q *listQuery) err() error {
	if len(q.faults) == 0 {
		return nil
	}
	return fault.Invalid(q.faults[:min(len(q.faults), maxFaults)]...)
}

// cursorKind is the kind of list that a cursor belongs to. A cursor of another list is refused.
type cursorKind byte

const (
	chainCursor   cursorKind = 'c'
	eventCursor   cursorKind = 'e'
	receiptCursor cursorKind = 'r'
	keyCursor     cursorKind = 'k'

	approvalCursor cursorKind = 'a'
	policyCursor   cursorKind = 'p'
	webhookCursor  cursorKind = 'w'
	actCursor      cursorKind = 'l'

	tokenCursor      cursorKind = 't'
	signingKeyCursor cursorKind = 's'
	budgetCursor     cursorKind = 'b'
	deliveryCursor   cursorKind = 'd'
)

func encodeIDCursor(kind cursorKind, id uuid.UUID) string {
	return base64.RawURLEncoding.EncodeToString(append([]byte{byte(kind)}, id[:]...))
}

func encodeNumberCursor(kind cursorKind, n int64) string {
	return base64.RawURLEncoding.EncodeToString(binary.BigEndian.AppendUint64([]byte{byte(kind)}, uint64(n))) //nolint:gosec // a cursor has the same 64 bits
}

// encodeMomentCursor is for lists that are ordered by time first.
func encodeMomentCursor(kind cursorKind, at ledger.Time, id uuid.UUID) string {
	data := binary.BigEndian.AppendUint64([]byte{byte(kind)}, uint64(at)) //nolint:gosec // a cursor has the same 64 bits
	return base64.RawURLEncoding.EncodeToString(append(data, id[:]...))
}

func decodeCursor(kind cursorKind, text string, size int) ([]byte, bool) {
	// Even the strict decoder ignores line breaks.
	if len(text) > 64 || strings.ContainsAny(text, "\r\n") {
		return nil, false
	}
	data, err := base64.RawURLEncoding.Strict().DecodeString(text)
	if err != nil || len(data) != size+1 || data[0] != byte(kind) {
		return nil, false
	}
	return data[1:], true
}

func (q *listQuery) idCursor(kind cursorKind) (id uuid.UUID, given bool) {
	text := q.values.Get("cursor")
	if text == "" {
		return uuid.Nil, false
	}
	data, ok := decodeCursor(kind, text, 16)
	if !ok {
		q.fault("cursor", "is not a next_cursor of this list")
		return uuid.Nil, false
	}
	return uuid.UUID(data), true
}

func (q *listQuery) numberCursor(kind cursorKind) int64 {
	text := q.values.Get("cursor")
	if text == "" {
		return 0
	}
	data, ok := decodeCursor(kind, text, 8)
	if ok {
		if n := int64(binary.BigEndian.Uint64(data)); n > 0 { //nolint:gosec // a cursor has the same 64 bits
			return n
		}
	}
	q.fault("cursor", "is not a next_cursor of this list")
	return 0
}

func (q *listQuery) momentCursor(kind cursorKind) (at ledger.Time, id uuid.UUID, given bool) {
	text := q.values.Get("cursor")
	if text == "" {
		return 0, uuid.Nil, false
	}
	data, ok := decodeCursor(kind, text, 24)
	if !ok {
		q.fault("cursor", "is not a next_cursor of this list")
		return 0, uuid.Nil, false
	}
	return ledger.Time(binary.BigEndian.Uint64(data)), uuid.UUID(data[8:]), true //nolint:gosec // a cursor has the same 64 bits
}

var decimalPattern = regexp.MustCompile(`^\d{1,2}(\.\d{1,3})?$`)

// seconds reads a duration in seconds, up to the bound most. It returns 0 if the parameter is missing.
func (q *listQuery) seconds(name string, most float64) time.Duration {
	text := q.values.Get(name)
	if text == "" {
		return 0
	}
	n, err := strconv.ParseFloat(text, 64)
	if err != nil || !decimalPattern.MatchString(text) || n > most {
		q.fault(name, fmt.Sprintf("must be a number of seconds from 0 to %v, with at most three decimals", most))
		return 0
	}
	return time.Duration(n * float64(time.Second))
}
