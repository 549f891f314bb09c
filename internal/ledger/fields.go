package ledger

import (
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"countersign/internal/canon"
	"countersign/internal/classify"
)

// Bounds of what comes from outside, in characters or elements.
const (
	maxName     = 200
	maxText     = 2000
	maxStored   = 64 << 10 // of a text that the service itself has written: what was stored can be read
	maxDomain   = 253
	maxListed   = 1000
	maxMetadata = 16 << 10 // bytes of canonical JSON; metadata stands in the receipt
	maxCount    = int64(1) << 53
	maxFaults   = 50 // an answer lists no more; a hostile body could hold thousands
)

// Fields reads the members of one JSON object and collects every fault with its
// pointer, so that a caller learns of all of them at once. A member that was
// never asked for is a fault too.
type Fields struct {
	object canon.Value
	path   string
	asked  []bool // by position among the object's members
	faults []FieldError
}

// NewFields reads from the members of v. Anything but an object is one fault.
func NewFields(v canon.Value) *Fields { return newFieldsAt(v, "") }

func newFieldsAt(v canon.Value, path string) *Fields {
	f := &Fields{object: v, path: path, asked: make([]bool, len(v.Members()))}
	if v.Kind() != canon.Object {
		f.faults = append(f.faults, FieldError{Pointer: path, Detail: "must be an object"})
	}
	return f
}

// Fault records that a member is wrong.
func (f *Fields) Fault(name, format string, args ...any) {
	f.faults = append(f.faults, FieldError{
		Pointer: f.path + "/" + escapePointer(name),
		Detail:  fmt.Sprintf(format, args...),
	})
}

// Has reports whether the member is there and not null.
func (f *Fields) Has(name string) bool {
	v, ok := f.get(name)
	return ok && !v.IsNull()
}

// Given reports whether the member is there, null or not.
func (f *Fields) Given(name string) bool {
	_, ok := f.get(name)
	return ok
}

func (f *Fields) get(name string) (canon.Value, bool) {
	for i, member := range f.object.Members() {
		if member.Name == name {
			f.asked[i] = true
			return member.Value, true
		}
	}
	return canon.Value{}, false
}

// Text reads an optional string; "" when it is missing or null.
func (f *Fields) Text(name string, limit int) string {
	v, ok := f.get(name)
	if !ok || v.IsNull() {
		return ""
	}
	if v.Kind() != canon.String {
		f.Fault(name, "must be a string")
		return ""
	}
	if fault := faultOfText(v.Str(), limit); fault != "" {
		f.Fault(name, "%s", fault)
		return ""
	}
	return v.Str()
}

// RequiredText reads a string that must be there and not be empty.
func (f *Fields) RequiredText(name string, limit int) string {
	before := len(f.faults)
	text := f.Text(name, limit)
	if text == "" && len(f.faults) == before {
		f.Fault(name, "is required")
	}
	return text
}

// Name reads an optional single-line string, without control characters: names
// are shown to people and must not be able to draw on their screens.
func (f *Fields) Name(name string, limit int) string {
	return f.singleLine(name, f.filled(name, limit))
}

// filled is Text for a member that may be left out or null but not empty: an
// empty name or idempotency key is a slip that would otherwise pass in silence.
func (f *Fields) filled(name string, limit int) string {
	before := len(f.faults)
	text := f.Text(name, limit)
	if text == "" && f.Has(name) && len(f.faults) == before {
		f.Fault(name, "must not be empty")
	}
	return text
}

// RequiredName is Name for a member that must be there.
func (f *Fields) RequiredName(name string, limit int) string {
	return f.singleLine(name, f.RequiredText(name, limit))
}

func (f *Fields) singleLine(name, text string) string {
	if strings.ContainsFunc(text, unicode.IsControl) {
		f.Fault(name, "must not contain control characters")
		return ""
	}
	return text
}

// OneOf reads an optional string that must be one of the given.
func (f *Fields) OneOf(name string, allowed ...string) string {
	before := len(f.faults)
	text := f.Text(name, maxText)
	for _, option := range allowed {
		if text == option {
			return text
		}
	}
	if (text != "" || f.Has(name)) && len(f.faults) == before {
		f.Fault(name, "must be one of %s", strings.Join(allowed, ", "))
	}
	return ""
}

// Texts reads an optional array of non-empty strings.
func (f *Fields) Texts(name string, most int64, limit int) []string {
	v, ok := f.get(name)
	if !ok || v.IsNull() {
		return nil
	}
	if v.Kind() != canon.Array {
		f.Fault(name, "must be an array of strings")
		return nil
	}
	if int64(len(v.Items())) > most {
		f.Fault(name, "must have at most %d elements", most)
		return nil
	}
	texts := make([]string, 0, len(v.Items()))
	for i, item := range v.Items() {
		fault := "must be a string"
		if item.Kind() == canon.String {
			fault = faultOfText(item.Str(), limit)
		}
		if item.Kind() == canon.String && item.Str() == "" {
			fault = "must not be empty"
		}
		if fault != "" {
			f.faults = append(f.faults, FieldError{Pointer: fmt.Sprintf("%s/%s/%d", f.path, name, i), Detail: fault})
			continue
		}
		texts = append(texts, item.Str())
	}
	return texts
}

// AgentNames reads an optional array of agents' names, each one time: a spelling
// that is the same name as an earlier one is left out.
func (f *Fields) AgentNames(name string, most int64) []string {
	before := len(f.faults)
	texts := f.Texts(name, most, maxName)
	if len(f.faults) > before {
		return nil
	}
	var names, folded []string
	for i, text := range texts {
		fold := classify.FoldName(text)
		switch {
		case strings.ContainsFunc(text, unicode.IsControl):
			f.faults = append(f.faults, FieldError{Pointer: fmt.Sprintf("%s/%s/%d", f.path, name, i), Detail: "must not contain control characters"})
		case fold == "":
			f.faults = append(f.faults, FieldError{Pointer: fmt.Sprintf("%s/%s/%d", f.path, name, i), Detail: "must contain a character that can be seen"})
		case !slices.Contains(folded, fold):
			names, folded = append(names, text), append(folded, fold)
		}
	}
	return names
}

// Object reads an optional object as its canonical bytes; nil when it is
// missing or null.
func (f *Fields) Object(name string, limit int) []byte {
	v, ok := f.get(name)
	if !ok || v.IsNull() {
		return nil
	}
	if v.Kind() != canon.Object {
		f.Fault(name, "must be an object")
		return nil
	}
	canonical := v.Append(nil)
	if len(canonical) > limit {
		f.Fault(name, "must be at most %d bytes of JSON", limit)
		return nil
	}
	return canonical
}

// objectValue reads an optional object as it is; null when it is missing.
func (f *Fields) objectValue(name string) canon.Value {
	v, ok := f.get(name)
	if !ok || v.IsNull() {
		return canon.Value{}
	}
	if v.Kind() != canon.Object {
		f.Fault(name, "must be an object")
		return canon.Value{}
	}
	return v
}

// Nested reads from the members of an optional object; nil when it is missing
// or null. Its faults reach Err through Join.
func (f *Fields) Nested(name string) *Fields {
	v, ok := f.get(name)
	if !ok || v.IsNull() {
		return nil
	}
	return newFieldsAt(v, f.path+"/"+escapePointer(name))
}

// Join takes over the faults of a nested object, unknown members included.
func (f *Fields) Join(nested *Fields) {
	nested.findUnknown()
	f.faults = append(f.faults, nested.faults...)
}

// Names lists the object's members, for objects whose names are data; each
// counts as asked for.
func (f *Fields) Names() []string {
	var names []string
	for i, member := range f.object.Members() {
		f.asked[i] = true
		names = append(names, member.Name)
	}
	return names
}

// Bool reads an optional boolean.
func (f *Fields) Bool(name string) bool {
	v, ok := f.get(name)
	if !ok || v.IsNull() {
		return false
	}
	if v.Kind() != canon.Bool {
		f.Fault(name, "must be true or false")
	}
	return v.Bool()
}

// Int reads an optional integer within bounds; 0 when missing or null.
func (f *Fields) Int(name string, least, most int64) int64 {
	v, ok := f.get(name)
	if !ok || v.IsNull() {
		return 0
	}
	n, isInt := v.Int()
	if !isInt || n < least || n > most {
		f.Fault(name, "must be an integer from %d to %d", least, most)
		return 0
	}
	return n
}

// Number reads an optional number within bounds; 0 when missing or null.
func (f *Fields) Number(name string, least, most float64) float64 {
	v, ok := f.get(name)
	if !ok || v.IsNull() {
		return 0
	}
	if v.Kind() != canon.Number || v.Float() < least || v.Float() > most {
		f.Fault(name, "must be a number from %v to %v", least, most)
		return 0
	}
	return v.Float()
}

// Time reads an optional timestamp; nil when it is missing or null.
func (f *Fields) Time(name string) *Time {
	before := len(f.faults)
	text := f.Text(name, maxName)
	if !f.Has(name) || len(f.faults) > before {
		return nil
	}
	t, err := ParseTime(text)
	if err != nil {
		f.Fault(name, "must be an RFC 3339 timestamp between 1970 and 9999")
		return nil
	}
	return &t
}

// Ignore accepts a member without reading it.
func (f *Fields) Ignore(name string) { f.get(name) }

// Err is an *Error with every fault, unknown members among them, or nil.
func (f *Fields) Err() error {
	f.findUnknown()
	if len(f.faults) == 0 {
		return nil
	}
	return Invalid(f.faults[:min(len(f.faults), maxFaults)]...)
}

func (f *Fields) findUnknown() {
	for i, member := range f.object.Members() {
		if !f.asked[i] {
			f.asked[i] = true
			f.Fault(member.Name, "is not a known field")
		}
	}
}

func faultOfText(text string, limit int) string {
	if len(text) > limit && utf8.RuneCountInString(text) > limit {
		return fmt.Sprintf("must have at most %d characters", limit)
	}
	if strings.ContainsRune(text, 0) {
		return "must not contain the character U+0000"
	}
	return ""
}

func escapePointer(name string) string {
	const longest = 100
	if len(name) > longest {
		name = strings.ToValidUTF8(name[:longest], "") + "…"
	}
	return canon.PointerToken(name)
}
