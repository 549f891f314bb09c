package policy

import (
	"errors"
	"reflect"
	"slices"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/ast"
	"cel.dev/cel-go/common/operators"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/common/types/traits"
)

// budgetsName is the variable behind budget("name"): a map from names to budgets. No condition can
// spell it, so any reference to it in a compiled condition reads a budget, which is state and not
// part of the action.
const budgetsName = "@budgets"

// budgetMacro turns budget("name") into a lookup in budgetsName. The name must be a literal, so
// that the budgets that a set reads are known.
var budgetMacro = cel.GlobalMacro("budget", 1, func(f cel.MacroExprFactory, _ ast.Expr, args []ast.Expr) (ast.Expr, *cel.Error) {
	if name := args[0]; name.Kind() != ast.LiteralKind || name.AsLiteral().Type() != types.StringType {
		return nil, f.NewError(name.ID(), "the name of a budget must be written out as a string")
	}
	return f.NewCall(operators.Index, f.NewIdent(budgetsName), args[0]), nil
})

// budgetsOf returns the names of the budgets that a condition reads.
func budgetsOf(checked *cel.Ast) (names []string) {
	ast.PostOrderVisit(checked.NativeRep().Expr(), ast.NewExprVisitor(func(e ast.Expr) {
		if e.Kind() != ast.CallKind || e.AsCall().FunctionName() != operators.Index {
			return
		}
		args := e.AsCall().Args()
		if len(args) == 2 && args[0].Kind() == ast.IdentKind && args[0].AsIdent() == budgetsName && args[1].Kind() == ast.LiteralKind {
			if name, ok := args[1].AsLiteral().(types.String); ok {
				names = append(names, string(name))
			}
		}
	}))
	return names
}

// Budgets returns the names of the budgets that the rules read, each once, in order. The caller
// must not modify it.
func (s *Set) Budgets() []string { return s.budgets }

func (s *Set) findBudgets() {
	for _, c := range s.conditions {
		s.budgets = append(s.budgets, c.budgets...)
	}
	slices.Sort(s.budgets)
	s.budgets = slices.Compact(s.budgets)
}

// budgetMap is the value of budgetsName.
type budgetMap map[string]float64

var _ traits.Mapper = budgetMap(nil)

// errNoBudget says that a condition reads a budget that does not exist.
var errNoBudget = errors.New("no such budget")

// FindStringKey is the interpreter's fast path for looking up a name.
func (m budgetMap) FindStringKey(name string) (any, bool) { return m.Find(types.String(name)) }

// Find implements traits.Mapper.
func (m budgetMap) Find(key ref.Val) (ref.Val, bool) {
	name, ok := key.(types.String)
	if !ok {
		return nil, false
	}
	left, found := m[string(name)]
	return &budgetLeft{left: types.Double(left), missing: !found}, true
}

// Get implements traits.Indexer.
func (m budgetMap) Get(key ref.Val) ref.Val {
	if v, found := m.Find(key); found {
		return v
	}
	return types.WrapErr(errNoBudget)
}

// Contains implements traits.Container.
func (m budgetMap) Contains(key ref.Val) ref.Val {
	_, found := m.Find(key)
	return types.Bool(found)
}

// Size implements traits.Sizer.
func (m budgetMap) Size() ref.Val { return types.Int(len(m)) }

// Iterator implements traits.Iterable. No condition can reach it, because none can name the map.
func (m budgetMap) Iterator() traits.Iterator {
	return types.NewStringList(values, nil).(traits.Iterable).Iterator()
}

// Equal implements ref.Val.
func (m budgetMap) Equal(ref.Val) ref.Val { return types.False }

// Type implements ref.Val.
func (m budgetMap) Type() ref.Type { return types.MapType }

// Value implements ref.Val.
func (m budgetMap) Value() any { return m }

// ConvertToType implements ref.Val.
func (m budgetMap) ConvertToType(ref.Type) ref.Val {
	return types.NewErr("budgets cannot be converted")
}

// ConvertToNative implements ref.Val.
func (m budgetMap) ConvertToNative(reflect.Type) (any, error) { return nil, errNotNative }

// budgetLeft is the value of budget("name").
type budgetLeft struct {
	left    types.Double
	missing bool // there is no such budget, so reading what is left of it fails
}

func (b *budgetLeft) get() (any, error) {
	if b.missing {
		return nil, errNoBudget
	}
	return b.left, nil
}

var (
	_ traits.Indexer     = (*budgetLeft)(nil)
	_ traits.FieldTester = (*budgetLeft)(nil)
)

// Get implements traits.Indexer, for conditions that hide the type with dyn().
func (b *budgetLeft) Get(key ref.Val) ref.Val {
	if b.missing {
		return types.WrapErr(errNoBudget)
	}
	if key == types.String("left") {
		return b.left
	}
	return types.NewErr("no such field")
}

// IsSet implements traits.FieldTester.
func (b *budgetLeft) IsSet(key ref.Val) ref.Val { return types.Bool(key == types.String("left")) }

// Equal implements ref.Val.
func (b *budgetLeft) Equal(other ref.Val) ref.Val {
	o, ok := other.(*budgetLeft)
	return types.Bool(ok && o.left == b.left)
}

// Type implements ref.Val.
func (b *budgetLeft) Type() ref.Type { return budgetVariable.typed }

// Value implements ref.Val.
func (b *budgetLeft) Value() any { return b }

// ConvertToType implements ref.Val.
func (b *budgetLeft) ConvertToType(to ref.Type) ref.Val {
	if to == types.TypeType {
		return budgetVariable.typed
	}
	return types.NewErr("a budget cannot be converted")
}

// ConvertToNative implements ref.Val.
func (b *budgetLeft) ConvertToNative(reflect.Type) (any, error) { return nil, errNotNative }
