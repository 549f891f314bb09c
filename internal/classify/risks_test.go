package classify

import (
	"encoding/json"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

type riskVectors struct {
	Cases []struct {
		Name   string
		Action struct {
			ActionType string          `json:"action_type"`
			ActionName string          `json:"action_name"`
			Payload    json.RawMessage `json:"payload"`
		}
		Risks []string
	}
}

// What is flagged without any policy is what the shared vectors say, and none of it is obviously
// safe, so a client leaves it to the service.
func TestRiskVectors(t *testing.T) {
	t.Parallel()
	var vectors riskVectors
	readVectors(t, "risks.json", &vectors)
	if len(vectors.Cases) < 30 {
		t.Fatalf("only %d cases", len(vectors.Cases))
	}
	for _, c := range vectors.Cases {
		payload := parse(t, c.Action.Payload)
		facts := Classify(Input{ActionType: c.Action.ActionType, ActionName: c.Action.ActionName, Payload: payload})
		named := NameRisks(c.Action.ActionName)
		got := []string{}
		for _, risk := range []struct {
			name  string
			found bool
		}{{"deletion", named.Deletion}, {"mail", named.Mail && len(facts.ExternalDomains) > 0}, {"shell", named.Shell}, {"sql", facts.WritesSQL}} {
			if risk.found {
				got = append(got, risk.name)
			}
		}
		if diff := cmp.Diff(c.Risks, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.Name, diff)
		}
		if len(got) > 0 && ObviouslySafe(c.Action.ActionName, SafeVerbs, facts, false) {
			t.Errorf("%s: it is obviously safe", c.Name)
		}
	}
}

// No name and no statement both has a risk and is obviously safe, whatever it consists of.
func TestRisksAreNeverObviouslySafe(t *testing.T) {
	t.Parallel()
	var all []string
	for _, set := range []map[string]bool{shellWords, deletionWords, mailWords, unsafeWords} {
		for w := range set {
			all = append(all, w)
		}
	}
	slices.Sort(all)
	all = append(append(all, SafeVerbs...), "order", "Table", "s")
	rapid.Check(t, func(t *rapid.T) {
		name := ""
		for range rapid.IntRange(1, 4).Draw(t, "words") {
			name += rapid.SampledFrom(all).Draw(t, "word") + rapid.SampledFrom([]string{"_", " ", "-"}).Draw(t, "separator")
		}
		if risks := NameRisks(name); risks != (Risks{}) && nameIsSafe(name, SafeVerbs) {
			t.Fatalf("%q has %+v and is obviously safe", name, risks)
		}
		statement := rapid.SampledFrom([]string{"", "select 1;", " ", "with x as (select 1);", "-- a note\n;"}).Draw(t, "before") +
			rapid.SampledFrom([]string{"insert into t ", "update t set x=1", "drop table t ", "Create unique index i ", "REVOKE all on t from x ", "delete the file", "merge into t "}).Draw(t, "statement")
		if writesSQL(statement) && !beginsStatement(statement) {
			t.Fatalf("%q writes, and a client takes it for prose", statement)
		}
	})
}
