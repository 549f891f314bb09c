package classify

import "countersign/internal/canon"

// tokens are what a call to a language model used.
type tokens struct{ input, output int64 }

// take reads a count. A key that occurs twice in different spellings counts once.
func (t *tokens) take(r role, v canon.Value) {
	switch r {
	case roleInput:
		t.input = max(t.input, readCount(v, MaxTokens))
	case roleOutput:
		t.output = max(t.output, readCount(v, MaxTokens))
	}
}

func (t tokens) larger(other tokens) tokens {
	return tokens{max(t.input, other.input), max(t.output, other.output)}
}

func (t tokens) plus(other tokens) tokens {
	return tokens{min(t.input+other.input, MaxTokens), min(t.output+other.output, MaxTokens)}
}

// or uses the counts of another if there are none.
func (t tokens) or(other tokens) tokens {
	if t.input == 0 {
		t.input = other.input
	}
	if t.output == 0 {
		t.output = other.output
	}
	return t
}

// sums are the totals of a container of the payload: the largest member of an object, the sum of a
// list's items.
type sums struct {
	amount money
	tokens tokens
}

func (s sums) larger(other sums) sums {
	return sums{s.amount.larger(other.amount), s.tokens.larger(other.tokens)}
}

func (s sums) plus(other sums) sums {
	return sums{s.amount.plus(other.amount), s.tokens.plus(other.tokens)}
}
