package policy

import (
	"reflect"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/common/types/traits"
)

// maxFields is the maximum number of fields of a variable.
const maxFields = 11

// facts is an Input as the programs of a set see it. Each field is converted at most once, when a
// rule first reads it.
type facts struct {
	action, chain, org record
	budgets            budgetMap
}

func newFacts() *facts {
	f := &facts{}
	f.action.variable, f.chain.variable, f.org.variable = actionVariable, chainVariable, orgVariable
	return f
}

func (f *facts) set(in *Input) {
	f.action.set(in)
	f.chain.set(in)
	f.org.set(in)
	f.budgets = nil
	if in != nil {
		f.budgets = in.Budgets
	}
}

var _ cel.Activation = (*facts)(nil)

// ResolveName implements cel.Activation.
func (f *facts) ResolveName(name string) (any, bool) {
	switch name {
	case "action":
		return &f.action, true
	case "chain":
		return &f.chain, true
	case "org":
		return &f.org, true
	case budgetsName:
		return f.budgets, true
	}
	return nil, false
}

// Parent implements cel.Activation.
func (f *facts) Parent() cel.Activation { return nil }

// record is the value of one variable.
type record struct {
	variable *variable
	in       *Input
	loaded   [maxFields]ref.Val
}

var (
	_ traits.Indexer     = (*record)(nil)
	_ traits.FieldTester = (*record)(nil)
)

func (r *record) set(in *Input) {
	r.in = in
	clear(r.loaded[:])
}

func (r *record) at(i int) ref.Val {
	if r.loaded[i] == nil {
		r.loaded[i] = r.variable.fields[i].load(r.in)
	}
	return r.loaded[i]
}

// has reports whether a field is not empty, for the has() macro.
func (r *record) has(i int) bool {
	zeroer, ok := r.at(i).(traits.Zeroer)
	return !ok || !zeroer.IsZeroValue()
}

// Get implements traits.Indexer, for conditions that hide a variable's type with dyn().
func (r *record) Get(key ref.Val) ref.Val {
	if i, found := r.find(key); found {
		return r.at(i)
	}
	return types.NewErr("no such field")
}

// IsSet implements traits.FieldTester.
func (r *record) IsSet(key ref.Val) ref.Val {
	if i, found := r.find(key); found {
		return types.Bool(r.has(i))
	}
	return types.NewErr("no such field")
}

func (r *record) find(key ref.Val) (int, bool) {
	name, ok := key.(types.String)
	if !ok {
		return 0, false
	}
	i, found := r.variable.index[string(name)]
	return i, found
}

// Equal implements ref.Val. A variable equals only itself.
func (r *record) Equal(other ref.Val) ref.Val { return types.Bool(ref.Val(r) == other) }

// Type implements ref.Val.
func (r *record) Type() ref.Type { return r.variable.typed }

// Value implements ref.Val.
func (r *record) Value() any { return r }

// ConvertToType implements ref.Val.
func (r *record) ConvertToType(to ref.Type) ref.Val {
	if to == types.TypeType {
		return r.variable.typed
	}
	return types.NewErr("a variable cannot be converted")
}

// ConvertToNative implements ref.Val.
func (r *record) ConvertToNative(reflect.Type) (any, error) { return nil, errNotNative }
