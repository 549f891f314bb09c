package policy

import (
	"reflect"

	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/common/types/traits"

	"countersign/internal/canon"
)

// jsonArray is an array of a payload as a CEL list. The library's own lists determine the type of
// their items by reflection each time one is created, which costs more than most rules.
type jsonArray struct {
	items []canon.Value
	step  Step
}

var (
	_ traits.Lister   = (*jsonArray)(nil)
	_ traits.Foldable = (*jsonArray)(nil)
	_ traits.Zeroer   = (*jsonArray)(nil)
)

// Get implements traits.Indexer.
func (a *jsonArray) Get(index ref.Val) ref.Val {
	i, err := types.GetOrError(index)
	if err != nil {
		return types.WrapErr(err)
	}
	if i < 0 || i >= len(a.items) {
		return types.NewErr("index out of bounds")
	}
	return fromJSON(a.items[i], a.step)
}

// Contains implements traits.Container.
func (a *jsonArray) Contains(item ref.Val) ref.Val {
	affordable(len(a.items), maxLooked)
	for i := range a.items {
		if types.Equal(item, fromJSON(a.items[i], a.step)) == types.True {
			return types.True
		}
	}
	return types.False
}

// Fold implements traits.Foldable, which loops use.
func (a *jsonArray) Fold(f traits.Folder) {
	for i := range a.items {
		if !f.FoldEntry(i, fromJSON(a.items[i], a.step)) {
			return
		}
		a.step.take()
	}
}

// Add implements traits.Adder: it concatenates two lists.
func (a *jsonArray) Add(other ref.Val) ref.Val { return a.copied().(traits.Adder).Add(other) }

// Iterator implements traits.Iterable.
func (a *jsonArray) Iterator() traits.Iterator { return a.copied().(traits.Iterable).Iterator() }

// copied returns the list in the library's own form, for rare operations.
func (a *jsonArray) copied() ref.Val {
	affordable(len(a.items), maxLooked)
	items := make([]ref.Val, len(a.items))
	for i := range a.items {
		items[i] = fromJSON(a.items[i], a.step)
	}
	return types.NewRefValList(values, items)
}

// Size implements traits.Sizer.
func (a *jsonArray) Size() ref.Val { return types.Int(len(a.items)) }

// IsZeroValue implements traits.Zeroer.
func (a *jsonArray) IsZeroValue() bool { return len(a.items) == 0 }

// Equal implements ref.Val.
func (a *jsonArray) Equal(other ref.Val) ref.Val {
	if array, ok := other.(*jsonArray); ok {
		return types.Bool(new(comparison).arrays(a.items, array.items))
	}
	list, ok := other.(traits.Lister)
	if !ok || list.Size() != a.Size() {
		return types.False
	}
	affordable(len(a.items), maxLooked)
	for i := range a.items {
		if types.Equal(fromJSON(a.items[i], a.step), list.Get(types.Int(i))) != types.True {
			return types.False
		}
	}
	return types.True
}

// Type implements ref.Val.
func (a *jsonArray) Type() ref.Type { return types.ListType }

// Value implements ref.Val.
func (a *jsonArray) Value() any { return a.items }

// ConvertToType implements ref.Val.
func (a *jsonArray) ConvertToType(to ref.Type) ref.Val {
	switch to {
	case types.ListType:
		return a
	case types.TypeType:
		return types.ListType
	}
	return types.NewErr("a list cannot be converted")
}

// ConvertToNative implements ref.Val. The string extension needs a list of strings to join it.
func (a *jsonArray) ConvertToNative(to reflect.Type) (any, error) {
	return a.copied().ConvertToNative(to)
}
