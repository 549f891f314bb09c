package classify

import (
	"encoding/json"
	"maps"
	"os"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"countersign/internal/canon"
)

type classified struct {
	Name   string `json:"name"`
	Action struct {
		ActionType string          `json:"action_type"`
		ActionName string          `json:"action_name"`
		Payload    json.RawMessage `json:"payload"`
		Metadata   json.RawMessage `json:"metadata"`
	} `json:"action"`
	expectation
}

type expectation struct {
	Categories      []string `json:"categories"`
	AmountUSD       *string  `json:"amount_usd"`
	HasAmount       bool     `json:"has_amount"`
	AmountUnusable  bool     `json:"amount_unusable"`
	ExternalDomains []string `json:"external_domains"`
	RecordsModified int64    `json:"records_modified"`
	Model           string   `json:"model"`
	InputTokens     int64    `json:"input_tokens"`
	OutputTokens    int64    `json:"output_tokens"`
}

func readVectors(t testing.TB, file string, into any) {
	t.Helper()
	data, err := os.ReadFile("../../testdata/vectors/" + file)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, into); err != nil {
		t.Fatal(err)
	}
}

func parse(t testing.TB, text []byte) canon.Value {
	t.Helper()
	if len(text) == 0 {
		return canon.NullValue()
	}
	v, err := canon.Parse(text)
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return v
}

// The published classification vectors are correct.
func TestClassifyVectors(t *testing.T) {
	t.Parallel()
	var vectors struct {
		Cases []classified `json:"cases"`
	}
	readVectors(t, "classification.json", &vectors)
	if len(vectors.Cases) < 200 {
		t.Fatalf("only %d cases", len(vectors.Cases))
	}
	for _, vector := range vectors.Cases {
		t.Run(vector.Name, func(t *testing.T) {
			t.Parallel()
			got := expect(Classify(Input{
				ActionType: vector.Action.ActionType,
				ActionName: vector.Action.ActionName,
				Payload:    parse(t, vector.Action.Payload),
				Metadata:   parse(t, vector.Action.Metadata),
			}))
			if diff := cmp.Diff(vector.expectation, got); diff != "" {
				t.Errorf("facts (-want +got):\n%s", diff)
			}
		})
	}
}

// expect writes facts in the form of the vectors: empty lists are lists.
func expect(facts Facts) expectation {
	e := expectation{
		Categories:      append([]string{}, facts.Categories...),
		HasAmount:       facts.Amount != nil,
		AmountUnusable:  facts.AmountUnusable,
		ExternalDomains: append([]string{}, facts.ExternalDomains...),
		RecordsModified: facts.RecordsModified,
		Model:           facts.Model,
		InputTokens:     facts.InputTokens,
		OutputTokens:    facts.OutputTokens,
	}
	if facts.Amount != nil {
		text := facts.Amount.String()
		e.AmountUSD = &text
	}
	return e
}

// TestLists: the lists that both languages have are those in the vectors.
func TestLists(t *testing.T) {
	t.Parallel()
	var lists struct {
		FileExtensions      []string `json:"file_extensions"`
		AmbiguousExtensions []string `json:"ambiguous_extensions"`
		GenericDomains      []string `json:"generic_domains"`
	}
	readVectors(t, "hosts.json", &lists)
	for _, c := range []struct {
		name string
		want []string
		got  map[string]bool
	}{
		{"file extensions", lists.FileExtensions, fileExtensions},
		{"ambiguous extensions", lists.AmbiguousExtensions, ambiguousExtensions},
		{"generic domains", lists.GenericDomains, genericDomains},
	} {
		if diff := cmp.Diff(c.want, slices.Sorted(maps.Keys(c.got))); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.name, diff)
		}
	}
}
