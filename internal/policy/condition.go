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

// condition is a compiled "when". It is true if both parts are true.
type condition struct {
	action cel.Program // the part that reads only the action, or nil
	state  cel.Program // the part that reads the chain, the organization or budgets, or nil
	joint  bool        // state also reads the action
	source *ast.SourceInfo
	// actionLimit and stateLimit are what the parts may cost for one action.
	actionLimit, stateLimit uint64
	budgets                 []string // names of the budgets that it reads
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

// bounds limit the cost of the parts of conditions that are evaluated together.
type bounds struct {
	rule uint64 // for each rule
	set  uint64 // for all rules together
	// steps limits all regular expressions together.
	steps uint64
	where string // what the parts read, for messages
}

var (
	actionBounds = bounds{maxRuleCost, maxSetCost, maxSteps, "the action alone"}
	stateBounds  = bounds{maxRuleCost / stateShare, maxSetCost / stateShare, maxSteps / stateShare, "the chain or the organization"}
)

// budget is what the remaining parts may cost.
type budget struct {
	bounds

	costLeft, stepsLeft uint64
}

func newBudget(b bounds) *budget { return &budget{b, b.set, b.steps} }

// budgets are the cost budgets of one document.
type budgets struct {
	action, state *budget
}

// condition compiles a condition and subtracts its cost from the budgets. It returns nil if there
// is nothing to compile; the reason has then been reported.
func (d *decoder) condition(n *node, left *budgets) *condition {
	if d.outline || n == nil || n.kind != canon.String || n.value == "" || len(n.value) > maxCondition || d.full() {
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
	if len(d.list) > before {
		return nil
	}
	c, err := d.compile(n, checked, left)
	if err != nil {
		d.refuse(n, "when cannot be compiled: %v", err)
	}
	return c
}

func (d *decoder) compile(n *node, checked *cel.Ast, left *budgets) (*condition, error) {
	action, state, err := split(checked)
	if err != nil {
		return nil, err
	}
	c := &condition{source: checked.NativeRep().SourceInfo(), actionLimit: actionBounds.rule, stateLimit: stateBounds.rule, budgets: budgetsOf(checked)}
	if action != nil {
		d.afford(n, action, left.action)
		if c.action, err = program(action, c.actionLimit); err != nil {
			return nil, err
		}
	}
	if state != nil {
		if d.afford(n, state, left.state); d.slow[d.rule] {
			c.stateLimit = actionBounds.rule // the limit when it was put
		}
		c.joint = reads(state.NativeRep().Expr(), actionVariable.name)
		c.state, err = program(state, c.stateLimit)
	}
	return c, err
}

// program compiles a part of a condition. Tracking the cost doubles the time that it takes, so it
// is omitted if even the largest request cannot reach the limit.
func program(part *cel.Ast, limit uint64) (cel.Program, error) {
	worst, err := environment().EstimateCost(part, estimator{worst: true})
	if err != nil {
		return nil, err
	}
	options := []cel.ProgramOption{cel.EvalOptions(cel.OptOptimize), boundedMatches()}
	if worst.Max > limit {
		options = append(options, cel.CostLimit(limit))
	}
	return environment().Program(part, options...)
}

// restrict refuses conditions that type-check but are useless or have unknown cost.
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

// afford subtracts the cost of a part of a condition from its budget.
func (d *decoder) afford(n *node, part *cel.Ast, left *budget) {
	estimate, err := environment().EstimateCost(part, estimator{})
	switch {
	case err != nil:
		d.refuse(n, "the cost of when cannot be estimated: %v", err)
	case estimate.Max > left.rule:
		d.exceed(n, left, "when may cost %s, more than the %d a rule may where it reads %s: read fewer or smaller lists, do not nest loops, "+
			"and join what reads the payload to what reads the chain with &&", units(estimate.Max), left.rule, left.where)
	case estimate.Max > left.costLeft:
		d.exceed(n, left, "with this rule the set may cost more than the %d all of it may where it reads %s: make its rules cheaper", left.set, left.where)
		left.costLeft = 0
	default:
		left.costLeft -= estimate.Max
		d.affordPatterns(n, part, left)
	}
}

// exceed refuses a part that costs more than its budget. A set that was put under the limits of an
// earlier version stays in force; its rule is reported as slow.
func (d *decoder) exceed(n *node, left *budget, format string, args ...any) {
	if d.stored && left.where == stateBounds.where {
		d.slow[d.rule] = true
		return
	}
	d.refuse(n, format, args...)
}

func units(cost uint64) string {
	const countless = 1 << 50
	if cost > countless {
		return "any number of units"
	}
	return fmt.Sprintf("%d units", cost)
}

// characterAt converts a line and column of an expression to a character index.
func characterAt(expression string, at common.Location) int {
	lines := strings.SplitAfter(expression, "\n")
	character := at.Column()
	for i := 0; i < at.Line()-1 && i < len(lines); i++ {
		character += utf8.RuneCountInString(lines[i])
	}
	return max(character, 0)
}
