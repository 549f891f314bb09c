package policy

import (
	"strings"
	"testing"

	"countersign/internal/canon"
)

// Every example in the guide compiles, and the guide documents every variable.
func TestTheGuideIsTrue(t *testing.T) {
	t.Parallel()
	guide := string(readFile(t, "../../docs/policies.md"))
	for _, v := range variables {
		for _, f := range v.fields {
			if !strings.Contains(guide, "| `"+v.name+"."+f.name+"` |") {
				t.Errorf("%s.%s is not in the table", v.name, f.name)
			}
		}
	}
	blocks := strings.Split(guide, "```")
	checked := map[string]int{}
	for i := 1; i < len(blocks); i += 2 {
		language, block, _ := strings.Cut(blocks[i], "\n")
		switch {
		case language == "yaml" && strings.HasPrefix(block, "cases:"):
			checked["cases"]++
			if _, err := ParseCases([]byte(block)); err != nil {
				t.Errorf("cases: %v", err)
			}
		case language == "yaml":
			checked["set"]++
			if _, err := Parse([]byte(block), YAML); err != nil {
				t.Errorf("set: %v", err)
			}
		case language == "json":
			if _, err := canon.Parse([]byte(block)); err != nil {
				t.Errorf("json: %v", err)
			}
		case !strings.HasPrefix(block, "countersign "):
			checked["conditions"]++
			parse(t, strings.Split(strings.TrimSpace(block), "\n")...)
		}
	}
	if len(checked) != 3 {
		t.Errorf("found %v: a set, conditions and cases are to be checked", checked)
	}
}
