package httpapi

import (
	"encoding/base64"
	"encoding/binary"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/google/uuid"

	"countersign/internal/ledger"
)

// Lists are paged by opaque cursors: where the last page ended, in the order of
// the list.
const (
	defaultLimit = 50
	maxLimit     = 200
	maxFilter    = 200 // characters
	maxFaults    = 50  // a query can hold thousands; an answer lists no more
)

// listQuery reads the query of a list and refuses what it does not know.
type listQuery struct {
	values url.Values
	faults []ledger.FieldError
}

func (x *exchange) query(known ...string) *listQuery {
	q := &listQuery{}
	values, err := url.ParseQuery(x.r.URL.RawQuery)
	if err != nil {
		q.fault("", "the query string cannot be read")
	}
	q.values = values
	for name, given := range values {
		switch {
		case !slices.Contains(known, name) && name != "limit" && name != "cursor":
			q.fault(name, "is not a known parameter")
		case len(given) > 1:
			q.fault(name, "must be given once")
		case given[0] == "":
			q.fault(name, "must not be empty")
		}
	}
	slices.SortFunc(q.faults, func(a, b ledger.FieldError) int { return strings.Compare(a.Pointer, b.Pointer) })
	return q
}

func (q *listQuery) fault(name, detail string) {
	if len(name) > 100 {
		name = "…"
	}
	q.faults = append(q.faults, ledger.FieldError{Pointer: "/" + name, Detail: detail})
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

func (q *listQuery) err() error {
	if len(q.faults) == 0 {
		return nil
	}
	return ledger.Invalid(q.faults[:min(len(q.faults), maxFaults)]...)
}

// Each kind of list has its own cursors: one list's cursor means nothing to
// another.
type cursorKind byte

const (
	chainCursor   cursorKind = 'c'
	eventCursor   cursorKind = 'e'
	receiptCursor cursorKind = 'r'
	keyCursor     cursorKind = 'k'
)

func encodeIDCursor(kind cursorKind, id uuid.UUID) string {
	return base64.RawURLEncoding.EncodeToString(append([]byte{byte(kind)}, id[:]...))
}

func encodeNumberCursor(kind cursorKind, n int64) string {
	return base64.RawURLEncoding.EncodeToString(binary.BigEndian.AppendUint64([]byte{byte(kind)}, uint64(n)))
}

func decodeCursor(kind cursorKind, text string, size int) ([]byte, bool) {
	// Even the strict decoder skips line breaks.
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
		if n := int64(binary.BigEndian.Uint64(data)); n > 0 {
			return n
		}
	}
	q.fault("cursor", "is not a next_cursor of this list")
	return 0
}
