package policy

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common"
	"cel.dev/cel-go/common/ast"
	"cel.dev/cel-go/common/overloads"

	"countersign/internal/canon"
)

// condition is a compiled "when".
type condition struct {
	program cel.Program
	source  *ast.SourceInfo
}

// expression reads the text of a condition.
func (d *decoder) expression(n *node) string {
	if !d.isA(n, canon.String, "when must be a string: put it in quotes") {
		return ""
	}
	if size := len(n.value); size == 0 || size > maxCondition {
		d.refuse(n, "when must have 1 to %d bytes, and has %d", maxCondition, size)
	}
	return n.value
}

// budget is what the rules still to be read may cost.
type budget struct {
	cost, steps uint64
}

// condition compiles a condition and takes what it may cost off the budget. It
// returns nil, and has said why, when there is nothing to compile.
func (d *decoder) condition(n *node, left *budget) *condition {
	if n == nil || n.kind != canon.String || n.value == "" || len(n.value) > maxCondition || d.full() {
		return nil
	}
	checked, issues := environment().Compile(n.value)
	if issues.Err() != nil {
		for _, issue := range issues.Errors() {
			d.report(d.rule, d.source.within(n, characterAt(n.value, issue.Location)), "%s", issue.Message)
		}
		return nil
	}
	before := len(d.list)
	d.restrict(n, checked)
	d.afford(n, checked, left)
	if len(d.list) > before {
		return nil
	}
	c, err := newCondition(checked)
	if err != nil {
		d.refuse(n, "when cannot be compiled: %v", err)
	}
	return c
}

// newCondition compiles a condition. Metering doubles the time that a condition
// takes, so it is left out where the bound is out of reach of even the largest
// request.
func newCondition(checked *cel.Ast) (*condition, error) {
	worst, err := environment().EstimateCost(checked, estimator{worst: true})
	if err != nil {
		return nil, err
	}
	options := []cel.ProgramOption{cel.EvalOptions(cel.OptOptimize), boundedMatches()}
	if worst.Max > maxRuleCost {
		options = append(options, cel.CostLimit(maxRuleCost))
	}
	program, err := environment().Program(checked, options...)
	return &condition{program, checked.NativeRep().SourceInfo()}, err
}

// restrict refuses what type-checks and is still of no use or of unknown cost.
func (d *decoder) restrict(n *node, checked *cel.Ast) {
	if !checked.OutputType().IsExactType(cel.BoolType) {
		d.refuse(n, "when must be a condition, true or false, and is of type %s: compare it with something", checked.OutputType())
	}
	source := checked.NativeRep().SourceInfo()
	refuse := func(e ast.Expr, detail string) {
		at := characterAt(n.value, source.GetStartLocation(e.ID()))
		d.report(d.rule, d.source.within(n, at), "%s", detail)
	}
	ast.PostOrderVisit(checked.NativeRep().Expr(), ast.NewExprVisitor(func(e ast.Expr) {
		switch {
		case e.Kind() == ast.StructKind:
			refuse(e, "objects of a type cannot be made in a condition")
		case e.Kind() == ast.CallKind && e.AsCall().FunctionName() == overloads.Matches && !literalPattern(e.AsCall()):
			refuse(e, "the pattern of matches must be written out as a string")
		}
	}))
}

func literalPattern(call ast.CallExpr) bool {
	args := call.Args()
	return len(args) > 0 && args[len(args)-1].Kind() == ast.LiteralKind
}

func (d *decoder) afford(n *node, checked *cel.Ast, left *budget) {
	estimate, err := environment().EstimateCost(checked, estimator{})
	switch {
	case err != nil:
		d.refuse(n, "the cost of when cannot be estimated: %v", err)
	case estimate.Max > maxRuleCost:
		d.refuse(n, "when may cost %s, more than the %d a rule may: read fewer or smaller lists, and do not nest loops", units(estimate.Max), maxRuleCost)
	case estimate.Max > left.cost:
		d.refuse(n, "with this rule the set may cost more than the %d all of it may: make its rules cheaper", maxSetCost)
		left.cost = 0
	default:
		left.cost -= estimate.Max
		d.affordPatterns(n, checked, left)
	}
}

func units(cost uint64) string {
	const countless = 1 << 50
	if cost > countless {
		return "any number of units"
	}
	return fmt.Sprintf("%d units", cost)
}

// characterAt turns a line and column of an expression into a character of it.
func characterAt(expression string, at common.Location) int {
	lines := strings.SplitAfter(expression, "\n")
	character := at.Column()
	for i := 0; i < at.Line()-1 && i < len(lines); i++ {
		character += utf8.RuneCountInString(lines[i])
	}
	return max(character, 0)
}
