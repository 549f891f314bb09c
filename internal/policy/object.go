package policy

import (
	"errors"
	"reflect"

	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/common/types/traits"

	"countersign/internal/canon"
)

var errNotNative = errors.New("conditions have no use for Go values")

// jsonObject is an object of a payload as a CEL map.
type jsonObject struct {
	json canon.Value
	step Step
}

// object wraps a JSON object. Anything else, such as the null of missing metadata, looks like an
// empty one.
func object(v canon.Value, step Step) ref.Val { return &jsonObject{v, step} }

var (
	_ traits.Mapper   = (*jsonObject)(nil)
	_ traits.Zeroer   = (*jsonObject)(nil)
	_ traits.Foldable = (*jsonObject)(nil)
)

// FindStringKey is the interpreter's fast path for looking up a name.
func (o *jsonObject) FindStringKey(name string) (any, bool) {
	v, found := o.json.Get(name)
	if !found {
		return nil, false
	}
	return fromJSON(v, o.step), true
}

// Find implements traits.Mapper. No object contains a key that is not a string.
func (o *jsonObject) Find(key ref.Val) (ref.Val, bool) {
	name, ok := key.(types.String)
	if !ok {
		return nil, false
	}
	v, found := o.json.Get(string(name))
	if !found {
		return nil, false
	}
	return fromJSON(v, o.step), true
}

// Get implements traits.Indexer.
func (o *jsonObject) Get(key ref.Val) ref.Val {
	if v, found := o.Find(key); found {
		return v
	}
	return types.NewErr("no such key")
}

// Contains implements traits.Container.
func (o *jsonObject) Contains(key ref.Val) ref.Val {
	_, found := o.Find(key)
	return types.Bool(found)
}

// Size implements traits.Sizer.
func (o *jsonObject) Size() ref.Val { return types.Int(len(o.json.Members())) }

// IsZeroValue implements traits.Zeroer.
func (o *jsonObject) IsZeroValue() bool { return len(o.json.Members()) == 0 }

// Iterator implements traits.Iterable. It iterates over the names.
func (o *jsonObject) Iterator() traits.Iterator {
	affordable(len(o.json.Members()), maxLooked)
	names := make([]string, 0, len(o.json.Members()))
	for _, m := range o.json.Members() {
		names = append(names, m.Name)
	}
	return types.NewStringList(values, names).Iterator()
}

// Fold implements traits.Foldable, which loops use.
func (o *jsonObject) Fold(loop traits.Folder) {
	affordable(len(o.json.Members()), maxLooked)
	for _, m := range o.json.Members() {
		if !loop.FoldEntry(types.String(m.Name), fromJSON(m.Value, o.step)) {
			return
		}
		o.step.take()
	}
}

// Equal implements ref.Val.
func (o *jsonObject) Equal(other ref.Val) ref.Val {
	if object, ok := other.(*jsonObject); ok {
		return types.Bool(new(comparison).objects(o.json.Members(), object.json.Members()))
	}
	object, ok := other.(traits.Mapper)
	if !ok || object.Size() != o.Size() {
		return types.False
	}
	affordable(len(o.json.Members()), maxLooked)
	for _, m := range o.json.Members() {
		v, found := object.Find(types.String(m.Name))
		if !found || types.Equal(fromJSON(m.Value, o.step), v) != types.True {
			return types.False
		}
	}
	return types.True
}

// Type implements ref.Val.
func (o *jsonObject) Type() ref.Type { return types.MapType }

// Value implements ref.Val.
func (o *jsonObject) Value() any { return o.json }

// ConvertToType implements ref.Val.
func (o *jsonObject) ConvertToType(to ref.Type) ref.Val {
	switch to {
	case types.MapType:
		return o
	case types.TypeType:
		return types.MapType
	}
	return types.NewErr("an object cannot be converted")
}

// ConvertToNative implements ref.Val.
func (o *jsonObject) ConvertToNative(reflect.Type) (any, error) { return nil, errNotNative }
