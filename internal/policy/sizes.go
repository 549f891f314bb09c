package policy

import (
	"cel.dev/cel-go/common/cost"
	"cel.dev/cel-go/common/types"
)

// sizes is the assumed size of a field: usually, at most, and of each item. A payload's items have
// no separate limit.
type sizes struct {
	usual, most, each uint64
}

// estimator provides cost estimates with the sizes of the values that a condition reads: the usual
// ones, or the maximum that the service permits.
type estimator struct {
	worst bool
}

var _ cost.Estimator = estimator{}

// EstimateCallCost implements cost.Estimator. It uses the library's own figures.
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

// declaredSizes returns the sizes of the field that a path leads to or into.
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
