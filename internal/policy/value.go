package policy

import (
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"

	"countersign/internal/canon"
)

// adapter converts JSON values for CEL one at a time, when they are read: a payload may be large,
// and a rule reads few values of it.
type adapter struct {
	types.Adapter
}

// NativeToValue implements types.Adapter.
func (a adapter) NativeToValue(value any) ref.Val {
	switch v := value.(type) {
	case ref.Val:
		return v
	case canon.Value:
		return fromJSON(v, nil)
	}
	return a.Adapter.NativeToValue(value)
}

var values = adapter{types.DefaultTypeAdapter}

// fromJSON converts every number to a double, including integers: a payload has one kind of number,
// and the type must not depend on the value.
func fromJSON(v canon.Value, step Step) ref.Val {
	switch v.Kind() {
	case canon.Bool:
		return types.Bool(v.Bool())
	case canon.Number:
		return types.Double(v.Float())
	case canon.String:
		return types.String(v.Str())
	case canon.Array:
		return &jsonArray{v.Items(), step}
	case canon.Object:
		return object(v, step)
	default:
		return types.NullValue
	}
}
