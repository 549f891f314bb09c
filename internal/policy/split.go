package policy

import (
	"strings"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/ast"
	"cel.dev/cel-go/common/operators"
)

// split takes a condition apart into what reads the action alone and what reads
// anything else. Both parts must hold for the condition to hold; a part that there is
// nothing of is nil.
//
// It cuts at the "&&" at the top alone. That changes no verdict: in the language, an
// error on one side of "&&" does not matter where the other side is false, whichever
// is evaluated first.
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

// conjuncts is an expression without the operands of its "&&" that are not wanted; nil
// where none is. Node ids stay, and with them types and places.
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

// readsState reports whether an expression names anything but the action and the
// variables of its own loops. A loop variable with the name of a state counts as the
// state: that costs time and changes no verdict.
func readsState(e ast.Expr) bool {
	return reads(e, chainVariable.name) || reads(e, orgVariable.name) || reads(e, budgetsName)
}

// reads reports whether an expression names a variable. Behind a dot it does so where a
// loop variable has the same name.
func reads(e ast.Expr, name string) bool {
	found := false
	ast.PostOrderVisit(e, ast.NewExprVisitor(func(e ast.Expr) {
		found = found || e.Kind() == ast.IdentKind && strings.TrimPrefix(e.AsIdent(), ".") == name
	}))
	return found
}

// part makes an expression out of a checked one a condition of its own.
func part(checked *cel.Ast, e ast.Expr) (*cel.Ast, error) {
	whole := checked.NativeRep()
	proto, err := ast.ToProto(ast.NewCheckedAST(ast.NewAST(e, whole.SourceInfo()), whole.TypeMap(), whole.ReferenceMap()))
	if err != nil {
		return nil, err
	}
	return cel.CheckedExprToAstWithSource(proto, checked.Source())
}
