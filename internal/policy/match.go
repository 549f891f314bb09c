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
	// Rule belongs to the set, and must not be modified.
	Rule *Rule
	// Failed says why the rule could not be evaluated; nil if it could, and its
	// condition holds. A rule that failed counts as deny, whatever it says. The
	// text holds nothing of the action.
	Failed error
}

// Examined is what a set says about an action before the chain is at hand: the
// verdicts of the parts of its conditions that read the action alone.
type Examined struct {
	set      *Set
	verdicts []verdict // of the rule with the same index
}

// verdict is what a part of a condition says.
type verdict struct {
	holds  bool
	failed error // why it could not be evaluated
}

// activations are reused: one is larger than all that a typical set makes of it.
var activations = sync.Pool{New: func() any { return newFacts() }}

// Examine evaluates what reads the action alone, which may take long. Of the input it
// reads the action, and it does not keep it.
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

// Of reports whether this is what the set said, and not another.
func (e *Examined) Of(s *Set) bool { return e != nil && e.set == s }

// Match returns every rule that applies to the action, in the order of the
// document. It must be given what Examine has said of the same action, and does not
// keep in.
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

// applies reports whether a rule with this verdict applies: one that failed does.
func (v verdict) applies() bool { return v.holds || v.failed != nil }

// and joins two verdicts as the language does: what is false is false, whatever the
// other side says.
func (v verdict) and(other verdict) verdict {
	switch {
	case !other.applies():
		return other
	case v.failed != nil:
		return v
	}
	return other
}

// evaluate lends one evaluation frame to all rules: taking one out and putting it
// back costs as much as a simple condition.
func evaluate(in *Input, rules func(*interpreter.ExecutionFrame)) {
	f := activations.Get().(*facts)
	f.set(in)
	frame, err := interpreter.NewExecutionFrame(f)
	if err != nil {
		panic("policy: facts are no input: " + err.Error())
	}
	rules(frame)
	frame.Close()
	f.set(nil)
	activations.Put(f)
}

// verdict evaluates a part of a condition. A part that there is nothing of holds.
func (c *condition) verdict(frame *interpreter.ExecutionFrame, part cel.Program, limit uint64) verdict {
	if part == nil {
		return verdict{holds: true}
	}
	frame.SetCostTracker(nil) // each part has its whole limit to itself
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

// failure words an error anew: the library's text may quote the payload, which
// does not belong into reasons and logs.
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
