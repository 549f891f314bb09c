package policy

import (
	"regexp"
	"slices"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/ast"
	"cel.dev/cel-go/common/cost"
	"cel.dev/cel-go/common/overloads"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/interpreter"
)

// boundedMatches makes "matches" check the size of a text first. The cost tracker counts a call
// when it is over, which for a pattern on a megabyte is a tenth of a second too late.
func boundedMatches() cel.ProgramOption {
	member := &interpreter.RegexOptimization{
		Function: overloads.Matches, OverloadID: overloads.MatchesString, RegexIndex: 1, Factory: compileMatch,
	}
	global := *member
	global.OverloadID = overloads.Matches
	return cel.OptimizeRegex(member, &global)
}

func compileMatch(call interpreter.InterpretableCall, pattern string) (interpreter.InterpretableCall, error) {
	compiled, err := regexp.Compile(pattern)
	if err != nil {
		return nil, err
	}
	match := func(args ...ref.Val) ref.Val {
		text, ok := args[0].(types.String)
		if !ok {
			return types.MaybeNoSuchOverloadErr(args[0])
		}
		affordable(len(text), maxMatched)
		return types.Bool(compiled.MatchString(string(text)))
	}
	return interpreter.NewCall(call.ID(), call.Function(), call.OverloadID(), call.Args(), match), nil
}

// affordPatterns subtracts the steps that the patterns of a condition may need from the budget.
func (d *decoder) affordPatterns(n *node, part *cel.Ast, left *budget) {
	steps, err := maxStepsOf(part)
	switch {
	case err != nil:
		d.refuse(n, "the cost of matches cannot be estimated: %v", err)
	case steps > left.stepsLeft:
		d.exceed(n, left, "with this rule the patterns of the set may need more than the %d steps all of them may where they read %s: write shorter "+
			"patterns with fewer repetitions, and use matches on names rather than on payloads and in loops", left.steps, left.where)
		left.stepsLeft = 0
	default:
		left.stepsLeft -= steps
	}
}

// maxStepsOf returns the maximum number of steps of the patterns in a condition. The library's
// estimates know how often a loop runs and which of two branches is more expensive, so this uses
// them, with a price for steps that dwarfs everything else.
func maxStepsOf(checked *cel.Ast) (uint64, error) {
	const price = 1_000_000_000_000
	patterns := &stepEstimator{estimator: estimator{worst: true}, price: price}
	estimate, err := environment().EstimateCost(checked, patterns)
	if err != nil || !patterns.found {
		return 0, err
	}
	return estimate.Max / price, nil
}

// stepEstimator charges for the steps of "matches".
type stepEstimator struct {
	estimator
	price uint64
	found bool
}

// EstimateSize implements cost.Estimator. It assumes the usual number of domains, because with more
// it would refuse sets that are in force.
func (s *stepEstimator) EstimateSize(node cost.AstNode) *cost.SizeEstimate {
	if slices.Equal(node.Path(), []string{actionVariable.name, domainsName}) {
		return &cost.SizeEstimate{Max: usualList}
	}
	return s.estimator.EstimateSize(node)
}

// EstimateCallCost implements cost.Estimator.
//
//nolint:gocritic // the signature is the library's
func (s *stepEstimator) EstimateCallCost(function, _ string, target *cost.AstNode, args []cost.AstNode) *cost.CallEstimate {
	if function != overloads.Matches || len(args) == 0 {
		return nil
	}
	s.found = true
	text, pattern := args[0], args[len(args)-1]
	if target != nil {
		text = *target
	}
	steps := s.length(text) * instructions(pattern.Expr())
	return cost.NewCallEstimate(cost.Estimate{Max: steps * s.price}, nil)
}

// length returns the number of positions of a text that a pattern is matched against, including its
// end.
func (s *stepEstimator) length(text cost.AstNode) uint64 {
	size := s.size(text)
	if computed := text.ComputedSize(); computed != nil {
		size = computed.Max
	}
	return min(size, maxMatched) + 1
}

// instructions returns the size of a pattern. A pattern that is not a literal or does not compile
// is refused elsewhere.
func instructions(pattern ast.Expr) uint64 {
	if pattern.Kind() != ast.LiteralKind {
		return maxPattern
	}
	text, _ := pattern.AsLiteral().(types.String)
	size, err := types.RegexProgramSize(string(text))
	if err != nil {
		return maxPattern
	}
	return uint64(size) //nolint:gosec // a size is never negative
}
