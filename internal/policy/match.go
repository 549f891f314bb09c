package policy

import (
	"errors"
	"fmt"
	"strings"
	"sync"

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

// activations are reused: one is larger than all that a typical set makes of it.
var activations = sync.Pool{New: func() any { return newFacts() }}

// Match returns every rule that applies to the action, in the order of the
// document. It does not keep in.
func (s *Set) Match(in *Input) []Hit {
	f := activations.Get().(*facts)
	f.set(in)
	hits := s.match(f)
	f.set(nil)
	activations.Put(f)
	return hits
}

// match lends one evaluation frame to all rules: taking one out and putting it
// back costs as much as a simple condition.
func (s *Set) match(f *facts) []Hit {
	frame, err := interpreter.NewExecutionFrame(f)
	if err != nil {
		panic("policy: facts are no input: " + err.Error())
	}
	defer frame.Close()
	var hits []Hit
	for i, c := range s.conditions {
		frame.SetCostTracker(nil) // each rule has the whole bound to itself
		holds, err := c.holds(frame)
		if holds || err != nil {
			hits = append(hits, Hit{Rule: &s.rules[i], Failed: err})
		}
	}
	return hits
}

func (c *condition) holds(frame *interpreter.ExecutionFrame) (bool, error) {
	result, _, err := c.program.Eval(frame)
	if err != nil {
		return false, c.failure(err)
	}
	holds, ok := result.(types.Bool)
	if !ok {
		return false, errors.New("its condition is neither true nor false")
	}
	return bool(holds), nil
}

// failure words an error anew: the library's text may quote the payload, which
// does not belong into reasons and logs.
func (c *condition) failure(err error) error {
	var cancelled interpreter.EvalCancelledError
	if errors.As(err, &cancelled) {
		return fmt.Errorf("its condition costs more than %d units on this action", maxRuleCost)
	}
	what := "its condition does not fit the types of what it reads"
	if strings.HasPrefix(err.Error(), "no such key") {
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
