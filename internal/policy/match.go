package policy

import (
	"errors"
	"fmt"
	"strings"
	"sync"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/interpreter"
)

// Hit is a rule that applies.
type Hit struct {
	// Rule belongs to the set and must not be modified.
	Rule *Rule
	// Failed says why the rule could not be evaluated. It is nil if the condition is true. A rule
	// that failed counts as deny, whatever its decision is. The text contains nothing of the
	// action.
	Failed error
}

// Examined is the result of evaluating the parts of a set's conditions that read only the action,
// before the chain is available.
type Examined struct {
	set      *Set
	verdicts []verdict // verdicts[i] is for rules[i]
}

// verdict is the result of a part of a condition.
type verdict struct {
	holds  bool
	failed error // why it could not be evaluated, or nil
}

// activations are reused, because one is larger than everything that a typical set reads of it.
var activations = sync.Pool{New: func() any { return newFacts() }}

// Examine evaluates the parts that read only the action, which may take long. It reads only the
// action from the input and does not keep it.
func (s *Set) Examine(in *Input) *Examined {
	e := &Examined{s, make([]verdict, len(s.rules))}
	evaluate(in, func(frame *interpreter.ExecutionFrame) {
		for i, c := range s.conditions {
			e.verdicts[i] = c.verdict(frame, c.action, c.actionLimit)
			in.Step.take()
		}
	})
	return e
}

// Of reports whether this is the result of exactly this set.
func (e *Examined) Of(s *Set) bool { return e != nil && e.set == s }

// Match returns every rule that applies to the action, in the order of the document. examined must
// be the result of Examine for the same action. Match does not keep in.
func (s *Set) Match(in *Input, examined *Examined) []Hit {
	if !examined.Of(s) {
		panic("policy: Match was given what another set has examined")
	}
	if !s.stateful {
		return s.hits(examined.verdicts)
	}
	verdicts := make([]verdict, len(s.rules))
	evaluate(in, func(frame *interpreter.ExecutionFrame) {
		for i, c := range s.conditions {
			verdicts[i] = examined.verdicts[i]
			if c.state != nil && verdicts[i].applies() {
				verdicts[i] = verdicts[i].and(c.verdict(frame, c.state, c.stateLimit))
			}
		}
	})
	return s.hits(verdicts)
}

func (s *Set) hits(verdicts []verdict) (hits []Hit) {
	for i, v := range verdicts {
		if v.applies() {
			hits = append(hits, Hit{Rule: &s.rules[i], Failed: v.failed})
		}
	}
	return hits
}

// applies reports whether a rule with this verdict applies. A rule that failed applies.
func (v verdict) applies() bool { return v.holds || v.failed != nil }

// and combines two verdicts like the language: false wins, whatever the other side is.
func (v verdict) and(other verdict) verdict {
	switch {
	case !other.applies():
		return other
	case v.failed != nil:
		return v
	}
	return other
}

// evaluate uses one evaluation frame for all rules, because getting one from the pool costs as much
// as a simple condition.
func evaluate(in *Input, rules func(*interpreter.ExecutionFrame)) {
	f := activations.Get().(*facts)
	f.set(in)
	frame, err := interpreter.NewExecutionFrame(f)
	if err != nil {
		panic("policy: facts are not an activation: " + err.Error())
	}
	rules(frame)
	frame.Close()
	f.set(nil)
	activations.Put(f)
}

// verdict evaluates a part of a condition. A missing part is true.
func (c *condition) verdict(frame *interpreter.ExecutionFrame, part cel.Program, limit uint64) verdict {
	if part == nil {
		return verdict{holds: true}
	}
	frame.SetCostTracker(nil) // each part has its own limit
	result, _, err := part.Eval(frame)
	if err != nil {
		return verdict{failed: c.failure(err, limit)}
	}
	holds, ok := result.(types.Bool)
	if !ok {
		return verdict{failed: errors.New("its condition is neither true nor false")}
	}
	return verdict{holds: bool(holds)}
}

// failure rewrites an error, because the library's text may quote the payload, which does not
// belong in reasons and logs.
func (c *condition) failure(err error, limit uint64) error {
	var cancelled interpreter.EvalCancelledError
	if errors.As(err, &cancelled) {
		return fmt.Errorf("its condition costs more than %d units on this action", limit)
	}
	what := "its condition does not fit the types of what it reads"
	switch {
	case errors.Is(err, errNoBudget):
		what = "its condition asks about a budget that the organization does not have"
	case strings.HasPrefix(err.Error(), "no such key"):
		what = "its condition reads a key that is missing: ask for it with has() first"
	}
	return errors.New(what + c.place(err))
}

// place says where in the condition an error occurred, if that is known.
func (c *condition) place(err error) string {
	var fault *types.Err
	if !errors.As(err, &fault) || fault.NodeID() <= 0 {
		return ""
	}
	at := c.source.GetStartLocation(fault.NodeID())
	return fmt.Sprintf(" (line %d, column %d of the condition)", at.Line(), at.Column()+1)
}
