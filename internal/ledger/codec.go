package ledger

import (
	"slices"
	"strings"
	"unicode"

	"github.com/google/uuid"

	"countersign/internal/canon"
	"countersign/internal/classify"
)

// Limits on request members, in characters or elements.
const (
	maxName     = 200
	maxText     = 2000
	maxStored   = 64 << 10 // for texts that the service wrote; large enough to read every stored text
	maxDomain   = 253
	maxListed   = 1000
	maxMetadata = 16 << 10 // bytes of canonical JSON; the receipt contains the metadata
	maxCount    = int64(1) << 53
)

// recordReader reads the members of a stored record. Only the service writes records, so a record
// with a missing or malformed member is unreadable as a whole.
type recordReader struct {
	*canon.Fields
	failed bool
}

// openRecord parses a stored record.
func openRecord(body []byte) (*recordReader, error) {
	v, err := canon.Parse(body)
	if err != nil {
		return nil, err
	}
	return &recordReader{Fields: canon.NewFields(v)}, nil
}

// readable reports whether every member was as expected and none was left over.
func (r *recordReader) readable() bool { return !r.failed && r.Err() == nil }

// nested reads an optional object and returns nil if it is missing or null. The caller must join
// it.
func (r *recordReader) nested(name string) *recordReader {
	fields := r.Nested(name)
	if fields == nil {
		return nil
	}
	return &recordReader{Fields: fields}
}

// each reads the objects of an optional array.
func (r *recordReader) each(name string, read func(*recordReader)) {
	list, _ := r.Get(name)
	for i, item := range list.Items() {
		inner := &recordReader{Fields: r.Item(name, i, item)}
		read(inner)
		r.join(inner)
	}
}

// join takes over the faults of a nested object.
func (r *recordReader) join(inner *recordReader) {
	r.Join(inner.Fields)
	r.failed = r.failed || inner.failed
}

func (r *recordReader) id(name string) uuid.UUID {
	id, err := ParseID(r.Text(name, maxName))
	r.failed = r.failed || err != nil
	return id
}

// optionalID reads an id that may be missing or null.
func (r *recordReader) optionalID(name string) (id uuid.UUID, given bool) {
	if r.Text(name, maxName) == "" {
		return id, false
	}
	return r.id(name), true
}

func (r *recordReader) time(name string) Time {
	t := ReadTime(r.Fields, name)
	if t == nil {
		r.failed = true
		return 0
	}
	return *t
}

// milliseconds reads a time that is stored as a number, or 0 if it is missing.
func (r *recordReader) milliseconds(name string) Time { return Time(r.Int(name, 0, maxCount)) }

// exactMoney decodes the result of writeExactMoney. It returns nil if it is missing or null.
func (r *recordReader) exactMoney(name string) *Money {
	text := r.Text(name, maxStored)
	if text == "" {
		return nil
	}
	m, err := parseExact(text)
	r.failed = r.failed || err != nil
	return &m
}

// requiredMoney is exactMoney for an amount that must be present.
func (r *recordReader) requiredMoney(name string) Money {
	m := r.exactMoney(name)
	if m == nil {
		r.failed = true
		return Money{}
	}
	return *m
}

// money decodes the result of writeMoney. It returns nil if it is missing or null.
func (r *recordReader) money(name string) *Money {
	v, ok := r.Get(name)
	if !ok || v.IsNull() {
		return nil
	}
	m := MoneyOf(v.Float())
	return &m
}

// redactionsHash returns nil for records that predate the hash.
func (r *recordReader) redactionsHash() *string {
	if !r.Given("redactions_sha256") {
		return nil
	}
	hash := r.Text("redactions_sha256", maxName)
	return &hash
}

// orNone returns "" for old records without the hash, whose events have no redactions either.
func orNone(hash *string) string {
	if hash == nil {
		return ""
	}
	return *hash
}

func writeTime(w *canon.ObjectWriter, name string, t Time) {
	w.Value(append(t.AppendTo(append(w.Name(name), '"')), '"')) // a timestamp needs no escaping
}

func writeTimeOrNull(w *canon.ObjectWriter, name string, t *Time) {
	if t == nil {
		w.Null(name)
		return
	}
	writeTime(w, name, *t)
}

func writeID(w *canon.ObjectWriter, name string, id uuid.UUID) {
	w.Value(append(appendID(append(w.Name(name), '"'), id), '"'))
}

// writeIDOrNull writes the zero id as null.
func writeIDOrNull(w *canon.ObjectWriter, name string, id uuid.UUID) {
	if id == uuid.Nil {
		w.Null(name)
		return
	}
	writeID(w, name, id)
}

func writeHashOrNull(w *canon.ObjectWriter, name string, sum *[32]byte) {
	if sum == nil {
		w.Null(name)
		return
	}
	w.String(name, FormatHash(*sum))
}

// writeMoney writes a JSON number, which may round the amount.
func writeMoney(w *canon.ObjectWriter, name string, m *Money) {
	if m == nil {
		w.Null(name)
		return
	}
	w.Number(name, m.Float())
}

// writeExactMoney preserves every digit of an amount, for records that are decoded again.
func writeExactMoney(w *canon.ObjectWriter, name string, m *Money) {
	if m == nil {
		w.Null(name)
		return
	}
	w.String(name, m.String())
}

// appendObjects appends an array with one object for each item.
func appendObjects[T any](dst []byte, items []T, write func(w *canon.ObjectWriter, item *T)) []byte {
	dst = append(dst, '[')
	for i := range items {
		if i > 0 {
			dst = append(dst, ',')
		}
		w := canon.BeginObject(dst)
		write(&w, &items[i])
		dst = w.End()
	}
	return append(dst, ']')
}

// ReadTime reads an optional timestamp, and returns nil if it is missing or null.
func ReadTime(f *canon.Fields, name string) *Time {
	before := f.Faults()
	text := f.Text(name, maxName)
	if !f.Has(name) || f.Faults() > before {
		return nil
	}
	t, err := ParseTime(text)
	if err != nil {
		f.Fault(name, "must be an RFC 3339 timestamp between 1970 and 9999")
		return nil
	}
	return &t
}

// readTexts reads an optional array of non-empty strings for further checks. It returns nil if one of
// them is faulty: without it, the others would not be at the places that their faults name.
func readTexts(f *canon.Fields, name string, most int64, limit int) []string {
	before := f.Faults()
	texts := f.Texts(name, most, limit)
	if f.Faults() > before {
		return nil
	}
	return texts
}

// ReadAgentNames reads an optional array of agent names and drops duplicates. Spellings that fold
// to the same name are duplicates.
func ReadAgentNames(f *canon.Fields, name string, most int64) []string {
	var names, folded []string
	for i, text := range readTexts(f, name, most, maxName) {
		fold := classify.FoldName(text)
		switch {
		case strings.ContainsFunc(text, unicode.IsControl):
			f.FaultAt(name, i, "must not contain control characters")
		case fold == "":
			f.FaultAt(name, i, "must contain a character that can be seen")
		case !slices.Contains(folded, fold):
			names, folded = append(names, text), append(folded, fold)
		}
	}
	return names
}

// unite joins lists and drops duplicates.
func unite(lists ...[]string) []string {
	var all []string
	seen := make(map[string]bool)
	for _, list := range lists {
		for _, element := range list {
			if !seen[element] {
				seen[element] = true
				all = append(all, element)
			}
		}
	}
	return all
}
