package observe

import (
	"fmt"
	"log/slog"
	"reflect"
)

// maskFormatted masks the text of a value. A value with bytes, which may be payloads, keys or
// hashes, is masked as a whole: formatted as numbers, they would not match Mask's pattern.
func maskFormatted(value any) slog.Value {
	if holdsBytes(reflect.TypeOf(value), true, 0) {
		return slog.StringValue(masked)
	}
	return slog.StringValue(Mask(fmt.Sprintf("%+v", value)))
}

const maxDepth = 8 // of nested types

// holdsBytes reports whether values of a type may contain bytes. A type with a String method is
// formatted by it, except in an unexported field, whose methods fmt does not call.
func holdsBytes(t reflect.Type, callsMethods bool, depth int) bool {
	if depth > maxDepth {
		return true
	}
	if _, isStringer := t.MethodByName("String"); isStringer && callsMethods {
		return false
	}
	within := func(inner reflect.Type) bool { return holdsBytes(inner, callsMethods, depth+1) }
	switch t.Kind() {
	case reflect.Interface: // the dynamic type is not known
		return true
	case reflect.Slice, reflect.Array:
		return t.Elem().Kind() == reflect.Uint8 || within(t.Elem())
	case reflect.Map:
		return within(t.Key()) || within(t.Elem())
	case reflect.Pointer, reflect.Chan:
		return within(t.Elem())
	case reflect.Struct:
		for i := range t.NumField() {
			if field := t.Field(i); holdsBytes(field.Type, callsMethods && field.IsExported(), depth+1) {
				return true
			}
		}
	}
	return false
}
