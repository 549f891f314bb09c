package canon

import (
	"strconv"
	"strings"
)

var (
	pointerEscapes   = strings.NewReplacer("~", "~0", "/", "~1")
	pointerUnescapes = strings.NewReplacer("~1", "/", "~0", "~")
)

// PointerToken is a member's name as a JSON pointer (RFC 6901) spells it.
func PointerToken(name string) string { return pointerEscapes.Replace(name) }

// At follows a JSON pointer into the value. It reports false where the pointer is
// malformed or leads nowhere.
func (v Value) At(pointer string) (Value, bool) {
	if pointer == "" {
		return v, true
	}
	if pointer[0] != '/' {
		return Value{}, false
	}
	for token := range strings.SplitSeq(pointer[1:], "/") {
		var found bool
		switch v.Kind() {
		case Object:
			v, found = v.member(token)
		case Array:
			v, found = v.item(token)
		}
		if !found {
			return Value{}, false
		}
	}
	return v, true
}

// member refuses a tilde that escapes nothing: a place has one pointer, and those who compare pointers
// as texts rely on it.
func (v Value) member(token string) (Value, bool) {
	name := pointerUnescapes.Replace(token)
	if PointerToken(name) != token {
		return Value{}, false
	}
	return v.Get(name)
}

func (v Value) item(token string) (Value, bool) {
	i, err := strconv.Atoi(token)
	if err != nil || i < 0 || i >= len(v.Items()) || strconv.Itoa(i) != token {
		return Value{}, false
	}
	return v.Items()[i], true
}
