package canon

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"countersign/internal/fault"
)

const (
	maxFaults = 50   // an answer lists no more; a hostile body could hold thousands
	maxOption = 2000 // characters of one of several options
)

// Fields reads the members of one JSON object and collects every fault with its
// pointer, so that a caller learns of all of them at once. A member that was
// never asked for is a fault too.
type Fields struct {
	object Value
	path   string
	asked  []bool // by position among the object's members
	faults []fault.FieldError
}

// NewFields reads from the members of v. Anything but an object is one fault.
func NewFields(v Value) *Fields { return NewFieldsAt(v, "") }

// NewFieldsAt is NewFields for a value inside a larger one. Its faults begin with path, a JSON pointer.
func NewFieldsAt(v Value, path string) *Fields {
	f := &Fields{object: v, path: path, asked: make([]bool, len(v.Members()))}
	if v.Kind() != Object {
		f.faults = append(f.faults, fault.FieldError{Pointer: path, Detail: "must be an object"})
	}
	return f
}

// Fault records that a member is wrong.
func (f *Fields) Fault(name, format string, args ...any) {
	f.faults = append(f.faults, fault.FieldError{
		Pointer: f.path + "/" + escapePointer(name),
		Detail:  fmt.Sprintf(format, args...),
	})
}

// FaultAt records that one element of an array is wrong.
func (f *Fields) FaultAt(name string, index int, detail string) {
	f.faults = append(f.faults, fault.FieldError{Pointer: fmt.Sprintf("%s/%s/%d", f.path, escapePointer(name), index), Detail: detail})
}

// FaultOfAll records that the object as a whole is wrong.
func (f *Fields) FaultOfAll(detail string) {
	f.faults = append(f.faults, fault.FieldError{Pointer: f.path, Detail: detail})
}

// Faults is the number of faults so far.
func (f *Fields) Faults() int { return len(f.faults) }

// Item reads from the members of one element of an array. Its faults reach Err through Join.
func (f *Fields) Item(name string, index int, v Value) *Fields {
	return NewFieldsAt(v, fmt.Sprintf("%s/%s/%d", f.path, escapePointer(name), index))
}

// Members returns the object's members in their order. Each counts as asked for.
func (f *Fields) Members() []Member {
	for i := range f.asked {
		f.asked[i] = true
	}
	return f.object.Members()
}

// Canonical is the canonical JSON of the whole object.
func (f *Fields) Canonical() []byte { return f.object.Append(nil) }

// Has reports whether the member is there and not null.
func (f *Fields) Has(name string) bool {
	v, ok := f.Get(name)
	return ok && !v.IsNull()
}

// Given reports whether the member is there, null or not.
func (f *Fields) Given(name string) bool {
	_, ok := f.Get(name)
	return ok
}

// Get returns the member as it is; ok is false where it is missing.
func (f *Fields) Get(name string) (Value, bool) {
	members := f.object.Members()
	for i := range members { // by index: a copy of each member would cost more than comparing its name
		if members[i].Name == name {
			f.asked[i] = true
			return members[i].Value, true
		}
	}
	return Value{}, false
}

// Text reads an optional string; "" when it is missing or null.
func (f *Fields) Text(name string, limit int) string {
	v, ok := f.Get(name)
	if !ok || v.IsNull() {
		return ""
	}
	if v.Kind() != String {
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
	return f.SingleLine(name, f.FilledText(name, limit))
}

// FilledText is Text for a member that may be left out or null but not empty: an
// empty name or idempotency key is a slip that would otherwise pass in silence.
func (f *Fields) FilledText(name string, limit int) string {
	before := len(f.faults)
	text := f.Text(name, limit)
	if text == "" && f.Has(name) && len(f.faults) == before {
		f.Fault(name, "must not be empty")
	}
	return text
}

// RequiredName is Name for a member that must be there.
func (f *Fields) RequiredName(name string, limit int) string {
	return f.SingleLine(name, f.RequiredText(name, limit))
}

// SingleLine refuses text that contains control characters, as a fault of the member.
func (f *Fields) SingleLine(name, text string) string {
	if strings.ContainsFunc(text, unicode.IsControl) {
		f.Fault(name, "must not contain control characters")
		return ""
	}
	return text
}

// OneOf reads an optional string that must be one of the given.
func (f *Fields) OneOf(name string, allowed ...string) string {
	before := len(f.faults)
	text := f.Text(name, maxOption)
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
	v, ok := f.Get(name)
	if !ok || v.IsNull() {
		return nil
	}
	if v.Kind() != Array {
		f.Fault(name, "must be an array of strings")
		return nil
	}
	if int64(len(v.Items())) > most {
		f.Fault(name, "must have at most %d elements", most)
		return nil
	}
	texts := make([]string, 0, len(v.Items()))
	for i, item := range v.Items() {
		problem := "must be a string"
		if item.Kind() == String {
			problem = faultOfText(item.Str(), limit)
		}
		if item.Kind() == String && item.Str() == "" {
			problem = "must not be empty"
		}
		if problem != "" {
			f.FaultAt(name, i, problem)
			continue
		}
		texts = append(texts, item.Str())
	}
	return texts
}

// Object reads an optional object as its canonical bytes; nil when it is
// missing or null.
func (f *Fields) Object(name string, limit int) []byte {
	v, ok := f.Get(name)
	if !ok || v.IsNull() {
		return nil
	}
	if v.Kind() != Object {
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

// ObjectValue reads an optional object as it is; null when it is missing.
func (f *Fields) ObjectValue(name string) Value {
	v, ok := f.Get(name)
	if !ok || v.IsNull() {
		return Value{}
	}
	if v.Kind() != Object {
		f.Fault(name, "must be an object")
		return Value{}
	}
	return v
}

// Nested reads from the members of an optional object; nil when it is missing
// or null. Its faults reach Err through Join.
func (f *Fields) Nested(name string) *Fields {
	v, ok := f.Get(name)
	if !ok || v.IsNull() {
		return nil
	}
	return NewFieldsAt(v, f.path+"/"+escapePointer(name))
}

// Join takes over the faults of a nested object, unknown members included.
func (f *Fields) Join(nested *Fields) {
	nested.findUnknown()
	f.faults = append(f.faults, nested.faults...)
}

// Bool reads an optional boolean.
func (f *Fields) Bool(name string) bool {
	v, ok := f.Get(name)
	if !ok || v.IsNull() {
		return false
	}
	if v.Kind() != Bool {
		f.Fault(name, "must be true or false")
	}
	return v.Bool()
}

// Int reads an optional integer within bounds; 0 when missing or null.
func (f *Fields) Int(name string, least, most int64) int64 {
	v, ok := f.Get(name)
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
	v, ok := f.Get(name)
	if !ok || v.IsNull() {
		return 0
	}
	if v.Kind() != Number || v.Float() < least || v.Float() > most {
		f.Fault(name, "must be a number from %v to %v", least, most)
		return 0
	}
	return v.Float()
}

// Ignore accepts a member without reading it.
func (f *Fields) Ignore(name string) { f.Get(name) }

// Err is an *fault.Error with every fault, unknown members among them, or nil.
func (f *Fields) Err() error {
	f.findUnknown()
	if len(f.faults) == 0 {
		return nil
	}
	return fault.Invalid(f.faults[:min(len(f.faults), maxFaults)]...)
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
	return PointerToken(name)
}
