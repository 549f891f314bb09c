package policy

import (
	"fmt"
	"strings"
	"testing"
)

// worstPatterns leave less of a set's limit than another one of them needs.
var worstPatterns = []string{
	`action.payload.f.matches('(\\pL|\\pL\\pL|\\pL\\pL\\pL){1,19}z$')`,
	`action.payload.f.matches('(\\pL|\\pL\\pL|\\pL\\pL\\pL){1,19}y$')`,
	`action.payload.f.matches('(\\pL|\\pL\\pL|\\pL\\pL\\pL){1,9}x$')`,
}

// A set whose patterns may need too many steps together is refused at the rule that
// exceeds the limit.
func TestParseBoundsThePatternsOfASet(t *testing.T) {
	t.Parallel()
	repeated := func(count int, when string) []string {
		var list []string
		for i := range count {
			list = append(list, strings.ReplaceAll(when, "%", fmt.Sprint(i)))
		}
		return list
	}
	const address = `matches('^[a-zA-Z0-9._+-]+@([a-zA-Z0-9-]+[.])+[a-zA-Z]{2,}%$')`
	cases := []struct {
		name       string
		conditions []string
		refused    int // the first refused rule, or 0
	}{
		{"large patterns on a payload", worstPatterns, 0},
		{"one more", append(repeated(1, worstPatterns[0]), worstPatterns...), 3},
		{"an address in each of 20 fields", repeated(20, "action.payload.f%."+address), 0},
		{"names in 200 rules", repeated(200, "action.action_name.lowerAscii().matches('^(bash|sh|shell|exec)%$')"), 0},
		{"all domains", repeated(1, `action.external_domains.exists(d, d.matches('^([a-z0-9-]+[.])*example[.](com|org|net)$'))`), 0},
		{"medium patterns in 200 rules", repeated(200, "action.payload.f.matches('(a|b|c|d|aa|ab|ac|ad|aaa|aab){1,9}%$')"), 6},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var document strings.Builder
			for i, when := range c.conditions {
				fmt.Fprintf(&document, "\n- {name: rule %d, decision: deny, reason: r, when: %q}", i+1, when)
			}
			_, err := Parse([]byte("rules:"+document.String()), YAML)
			if c.refused == 0 && err != nil {
				t.Fatal(err)
			}
			want := fmt.Sprintf("line %d, column 51: \"rule %d\": with this rule the patterns of the set may need more than the 2000000 steps", c.refused+1, c.refused)
			if c.refused > 0 && (err == nil || !strings.HasPrefix(err.Error(), want)) {
				t.Errorf("got %v, want %s", err, want)
			}
		})
	}
}
