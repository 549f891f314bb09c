package pricing

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// The published vectors of model costs hold.
func TestCostVectors(t *testing.T) {
	t.Parallel()
	var vectors struct {
		Effective string `json:"effective"`
		Cases     []struct {
			Name         string  `json:"name"`
			Model        string  `json:"model"`
			InputTokens  int64   `json:"input_tokens"`
			OutputTokens int64   `json:"output_tokens"`
			CostUSD      *string `json:"cost_usd"`
		} `json:"cases"`
	}
	data, err := os.ReadFile("../../testdata/vectors/pricing.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, &vectors); err != nil {
		t.Fatal(err)
	}
	if len(vectors.Cases) == 0 || vectors.Effective != Default().Effective() {
		t.Fatalf("%d cases for the table of %q, not %q", len(vectors.Cases), vectors.Effective, Default().Effective())
	}
	for _, vector := range vectors.Cases {
		t.Run(vector.Name, func(t *testing.T) {
			t.Parallel()
			var got *string
			if cost, known := Default().Cost(vector.Model, vector.InputTokens, vector.OutputTokens); known {
				text := cost.String()
				got = &text
			}
			if diff := cmp.Diff(vector.CostUSD, got); diff != "" {
				t.Errorf("cost (-want +got):\n%s", diff)
			}
		})
	}
}

// file is a price file with one model, of which a test replaces a part.
const file = `{"effective":"2026-01-31","currency":"USD","models":[` +
	`{"model":"example-large","provider":"example","aliases":["example-l"],"input_per_million":"2.50","output_per_million":"10"}]}`

// A price file replaces the built-in table and finds a model by its name, alias,
// provider and dated version.
func TestParse(t *testing.T) {
	t.Parallel()
	table, err := Parse([]byte(file))
	if err != nil {
		t.Fatal(err)
	}
	for _, model := range []string{"example-large", "example/example-large", "example-l", "example/example-l", "example-l-20260101"} {
		if cost, known := table.Cost(model, 2, 1); !known || cost.String() != "0.000015" {
			t.Errorf("%s costs %s, %t", model, cost, known)
		}
	}
	if _, known := table.Cost("gpt-4o", 1, 1); known {
		t.Error("a replaced table still knows a model of the built-in one")
	}
}

// A price file with any fault is refused, and the error names the fault.
func TestParseRefuses(t *testing.T) {
	t.Parallel()
	many := func(n int, item string) string {
		return strings.TrimSuffix(strings.Repeat(item+",", n), ",")
	}
	cases := []struct {
		name, old, replacement, complaint string
	}{
		{"no JSON", file, `{`, "not strict JSON"},
		{"duplicate member", `"currency":"USD"`, `"currency":"USD","currency":"USD"`, "not strict JSON"},
		{"no object", file, `[]`, "must be an object"},
		{"unknown member", `"currency"`, `"x":1,"currency"`, `"x" is not known`},
		{"no date", `"2026-01-31"`, `"January"`, "effective"},
		{"date without hyphens", `"2026-01-31"`, `"20260131"`, "effective"},
		{"another currency", `"USD"`, `"EUR"`, "currency"},
		{"no models", file, `{"effective":"2026-01-31","currency":"USD","models":[]}`, "1 to 2000"},
		{"too many models", file, `{"effective":"2026-01-31","currency":"USD","models":[` + many(maxModels+1, `{}`) + `]}`, "1 to 2000"},
		{"model that is no object", file, `{"effective":"2026-01-31","currency":"USD","models":[7]}`, "models[0]: must be an object"},
		{"unknown member of a model", `"provider"`, `"vendor"`, `models[0]: "vendor" is not known`},
		{"no name", `"example-large"`, `""`, "models[0]"},
		{"name with capitals", `"example-large"`, `"Example"`, "lower case"},
		{"name with blanks", `"example-large"`, `"example "`, "lower case"},
		{"name that is too long", `"example-large"`, `"` + strings.Repeat("x", maxName+1) + `"`, "200 bytes"},
		{"empty provider", `"example",`, `"",`, "provider"},
		{"aliases that are no list", `["example-l"]`, `"example-l"`, "aliases"},
		{"too many aliases", `["example-l"]`, `[` + many(maxNames, `"x"`) + `]`, "aliases"},
		{"alias of the model itself", `["example-l"]`, `["example-large"]`, `"example-large" is listed twice`},
		{"alias twice", `["example-l"]`, `["a","a"]`, `"a" is listed twice`},
		{"number for a price", `"2.50"`, `2.5`, "input_per_million must be dollars"},
		{"negative price", `"2.50"`, `"-1"`, "input_per_million"},
		{"exponent", `"2.50"`, `"1e9"`, "input_per_million"},
		{"empty price", `"2.50"`, `""`, "input_per_million"},
		{"point alone", `"2.50"`, `"."`, "input_per_million"},
		{"two points", `"2.50"`, `"1.2.3"`, "input_per_million"},
		{"price that is too long", `"2.50"`, `"0.00000000001"`, "input_per_million"},
		{"no output price", `,"output_per_million":"10"`, ``, "output_per_million"},
		{"limit that is no number", `"aliases"`, `"max_input_tokens":"1","aliases"`, "max_input_tokens"},
		{"limit of zero", `"aliases"`, `"max_input_tokens":0,"aliases"`, "max_input_tokens"},
		{"too many bytes", file, strings.Repeat(" ", maxFile+1), "the limit is"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			text := strings.Replace(file, c.old, c.replacement, 1)
			if text == file {
				t.Fatal("the case changes nothing")
			}
			_, err := Parse([]byte(text))
			if err == nil || !strings.Contains(err.Error(), c.complaint) {
				t.Errorf("got %v, want a complaint about %s", err, c.complaint)
			}
		})
	}
}

// A price file that lists a model twice is refused.
func TestParseRefusesAModelTwice(t *testing.T) {
	t.Parallel()
	const model = `{"model":%q,"input_per_million":"1","output_per_million":"1"}`
	text := `{"effective":"2026-01-31","currency":"USD","models":[` + fmt.Sprintf(model, "a") + "," + fmt.Sprintf(model, "b") + "," +
		fmt.Sprintf(model, "a") + `]}`
	if _, err := Parse([]byte(text)); err == nil || !strings.Contains(err.Error(), `models[2]: "a" is listed twice`) {
		t.Errorf("got %v", err)
	}
}

// No price file that is accepted gives a negative cost.
func FuzzParse(f *testing.F) {
	f.Add([]byte(file))
	f.Add(builtin)
	f.Fuzz(func(t *testing.T, data []byte) {
		table, err := Parse(data)
		if err != nil {
			return
		}
		for model := range table.prices {
			if cost, known := table.Cost(model, 1, 1); known && cost.IsNegative() {
				t.Errorf("%q costs %s", model, cost)
			}
		}
	})
}

func BenchmarkCost(b *testing.B) {
	table := Default()
	b.ReportAllocs()
	for b.Loop() {
		if _, known := table.Cost("gpt-4o-2024-08-06", 1830, 412); !known {
			b.Fatal("unknown")
		}
	}
}
