package observe

import (
	"fmt"
	"log/slog"
	"reflect"
)

// maskFormatted masks a value's text. Bytes are payloads, keys or hashes, and
// their text as numbers would not look like any of them: they go whole.
func maskFormatted(value any) slog.Value {
	if holdsBytes(reflect.TypeOf(value), 0) {
		return slog.StringValue(masked)
	}
	return slog.StringValue(Mask(fmt.Sprintf("%+v", value)))
}

const deepest = 8

func holdsBytes(t reflect.Type, depth int) bool {
	if depth > deepest {
		return true
	}
	if _, printsItself := t.MethodByName("String"); printsItself {
		return false
	}
	switch t.Kind() {
	case reflect.Interface: // whatever it holds
		return true
	case reflect.Slice, reflect.Array:
		return t.Elem().Kind() == reflect.Uint8 || holdsBytes(t.Elem(), depth+1)
	case reflect.Pointer, reflect.Map, reflect.Chan:
		return holdsBytes(t.Elem(), depth+1)
	case reflect.Struct:
		for i := range t.NumField() {
			if holdsBytes(t.Field(i).Type, depth+1) {
				return true
			}
		}
	}
	return false
}
