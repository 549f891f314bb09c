package cli

import (
	"encoding/json"
	"testing"

	"countersign/internal/fault"
)

// An error that names no address stays as it is.
func TestWithoutURL(t *testing.T) {
	t.Parallel()
	var unreadable json.SyntaxError
	if got := WithoutURL(&unreadable); got != error(&unreadable) {
		t.Errorf("an error that names no address became %v", got)
	}
}

// A refusal names the faulty members themselves, and not where a program would find them.
func TestRefusalsNameTheFaultyMembers(t *testing.T) {
	t.Parallel()
	two := []fault.FieldError{{Pointer: "/a", Detail: "is missing"}, {Pointer: "/b", Detail: "is too long"}}
	for _, test := range []struct {
		refused APIError
		want    string
	}{
		{APIError{Detail: fault.Invalid().Message, Errors: two}, "the request has invalid fields: /a is missing; /b is too long"},
		{APIError{Detail: "the policy set is refused: each problem is named in errors", Errors: two[:1]}, "the policy set is refused: /a is missing"},
		{APIError{Detail: "there is no such chain"}, "there is no such chain"},
		{APIError{Detail: "the body is not JSON: line 1", Errors: two[1:]}, "the body is not JSON: line 1: /b is too long"},
	} {
		if got := test.refused.Error(); got != test.want {
			t.Errorf("%+v reads %q, want %q", test.refused, got, test.want)
		}
	}
}
