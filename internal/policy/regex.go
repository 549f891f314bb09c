package policy

import (
	"regexp"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/overloads"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/interpreter"
)

// boundedMatches makes "matches" look at the size of a text before it looks at
// the text. The meter counts a call when it is over, which for a pattern on a
// megabyte is a tenth of a second too late.
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
