package policy

import (
	"cel.dev/cel-go/common/cost"
	"cel.dev/cel-go/common/types"
)

// sizes is how large a field is reckoned to be: as a rule, at the most, and
// each item of it. A payload's items have no bound of their own.
type sizes struct {
	usual, most, each uint64
}

// estimator tells cost estimates how large the values are that a condition
// reads: as they usually are, or as large as the service lets them be.
type estimator struct {
	worst bool
}

var _ cost.Estimator = estimator{}

// EstimateCallCost implements cost.Estimator: the language's own figures stand.
//
//nolint:gocritic // the signature is the library's
func (estimator) EstimateCallCost(string, string, *cost.AstNode, []cost.AstNode) *cost.CallEstimate {
	return nil
}

// EstimateSize implements cost.Estimator.
func (e estimator) EstimateSize(node cost.AstNode) *cost.SizeEstimate {
	return &cost.SizeEstimate{Max: e.size(node)}
}

func (e estimator) size(node cost.AstNode) uint64 {
	declared, item := declaredSizes(node.Path())
	switch {
	case item && declared.each > 0:
		return declared.each
	case !item && declared.usual > 0 && e.worst:
		return declared.most
	case !item && declared.usual > 0:
		return declared.usual
	case e.worst:
		return maxInput
	}
	switch node.Type().Kind() {
	case types.ListKind, types.MapKind, types.DynKind:
		return usualEntries
	default:
		return usualString
	}
}

// declaredSizes finds the field that a path leads to or into.
func declaredSizes(path []string) (declared sizes, item bool) {
	if len(path) < 2 {
		return sizes{}, false
	}
	for _, v := range variables {
		if i, found := v.index[path[1]]; found && v.name == path[0] {
			return v.fields[i].sizes, len(path) > 2
		}
	}
	return sizes{}, false
}
