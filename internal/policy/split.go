package policy

import (
	"strings"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/ast"
	"cel.dev/cel-go/common/operators"
)

// split separates a condition into the part that reads only the action and the part that reads
// anything else. The condition is true if both are. A missing part is nil.
//
// It splits only at "&&" at the top level. That changes no verdict: in CEL, an error on one side of
// "&&" does not matter if the other side is false, whichever is evaluated first.
func split(checked *cel.Ast) (action, state *cel.Ast, err error) {
	whole := checked.NativeRep()
	ofState := conjuncts(whole.Expr(), readsState)
	if ofState == nil {
		return checked, nil, nil
	}
	ofAction := conjuncts(whole.Expr(), func(e ast.Expr) bool { return !readsState(e) })
	if ofAction == nil {
		return nil, checked, nil
	}
	if action, err = part(checked, ofAction); err != nil {
		return nil, nil, err
	}
	state, err = part(checked, ofState)
	return action, state, err
}

// conjuncts returns an expression with only the wanted operands of its "&&", or nil if there is
// none. Node ids are preserved, and with them types and places.
func conjuncts(e ast.Expr, wanted func(ast.Expr) bool) ast.Expr {
	if e.Kind() != ast.CallKind || e.AsCall().FunctionName() != operators.LogicalAnd {
		if wanted(e) {
			return e
		}
		return nil
	}
	var kept []ast.Expr
	for _, operand := range e.AsCall().Args() {
		if operand = conjuncts(operand, wanted); operand != nil {
			kept = append(kept, operand)
		}
	}
	switch len(kept) {
	case 0:
		return nil
	case 1:
		return kept[0]
	}
	return ast.NewExprFactory().NewCall(e.ID(), operators.LogicalAnd, kept...)
}

// readsState reports whether an expression names anything except the action and its own loop
// variables. A loop variable with the name of a state variable counts as state: that costs time but
// changes no verdict.
func readsState(e ast.Expr) bool {
	return reads(e, chainVariable.name) || reads(e, orgVariable.name) || reads(e, budgetsName)
}

// reads reports whether an expression names a variable. A field with that name counts only if a
// loop variable has the same name.
func reads(e ast.Expr, name string) bool {
	found := false
	ast.PostOrderVisit(e, ast.NewExprVisitor(func(e ast.Expr) {
		found = found || e.Kind() == ast.IdentKind && strings.TrimPrefix(e.AsIdent(), ".") == name
	}))
	return found
}

// part turns a subexpression of a checked expression into a separate condition.
func part(checked *cel.Ast, e ast.Expr) (*cel.Ast, error) {
	whole := checked.NativeRep()
	proto, err := ast.ToProto(ast.NewCheckedAST(ast.NewAST(e, whole.SourceInfo()), whole.TypeMap(), whole.ReferenceMap()))
	if err != nil {
		return nil, err
	}
	return cel.CheckedExprToAstWithSource(proto, checked.Source())
}
