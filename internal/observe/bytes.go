package observe

import (
	"fmt"
	"log/slog"
	"reflect"
)

// maskFormatted masks the text of a value. A value with bytes, which may be payloads, keys or
// hashes, is masked as a whole: formatted as numbers, they would not match Mask's pattern.
func maskFormatted(value any) slog.Value {
	if holdsBytes(reflect.TypeOf(value), 0) {
		return slog.StringValue(masked)
	}
	return slog.StringValue(Mask(fmt.Sprintf("%+v", value)))
}

const maxDepth = 8 // of nested types

// holdsBytes reports whether values of a type may contain bytes. A type with a String method is
// formatted by it.
func holdsBytes(t reflect.Type, depth int) bool {
	if depth > maxDepth {
		return true
	}
	if _, isStringer := t.MethodByName("String"); isStringer {
		return false
	}
	switch t.Kind() {
	case reflect.Interface: // the dynamic type is not known
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
