package gateway

import (
	"errors"
	"net/http"
	"strings"
	"testing"

	"countersign/internal/cli"
)

// What a model reads about a call that was not carried out is a sentence that says why, and what to do.
func TestTextsForTheModel(t *testing.T) {
	t.Parallel()
	for want, err := range map[string]error{
		`The call of "pay" was denied by the policy "never": This is never done.`: (&decision{Policy: "never", Reason: "This is never done."}).denied("pay"),
		`The call of "pay" was denied: a reviewer denied the action: too much.`: (&decision{
			Policy: "ask first", Source: "human_approval", Reason: "a reviewer denied the action: too much",
		}).denied("pay"),
		`The call of "pay" was denied: the kill switch is active: a drill. Wait until it is off (see docs/rules.md).`: (&decision{
			KillSwitch: true, Reason: "a drill", Remediation: "Wait until it is off.", DocsURL: "docs/rules.md",
		}).denied("pay"),
		`The call of "pay" was not carried out: the session has ended.`: notCarriedOut("pay", errors.New("the session has ended")),
		`The call of "pay" was not carried out: its arguments are too large to be recorded (the body is too large); pass less, or in several calls.`: notCarriedOut(
			"pay", &cli.APIError{Status: http.StatusRequestEntityTooLarge, Detail: "the body is too large"}),
	} {
		got := string(toolErrorMessage("1", err))
		if !strings.Contains(got, `"isError":true,"resultType":"complete"`) {
			t.Errorf("the answer is not one of all protocols: %s", got)
		}
		if text := `"text":"` + strings.ReplaceAll(want, `"`, `\"`) + `"`; !strings.Contains(got, text) {
			t.Errorf("the answer is %s, want %s", got, text)
		}
	}
}
