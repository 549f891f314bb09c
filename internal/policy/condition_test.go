package policy

import (
	"strconv"
	"strings"
	"testing"
)

// A condition that is wrong or may cost too much is refused at its place in the YAML document.
func TestParseRefusesConditionsWithTheirPlace(t *testing.T) {
	t.Parallel()
	loop := "[1,2,3,4,5,6,7,8,9,10].all(%, "
	nested := strings.ReplaceAll(loop, "%", "a") + strings.ReplaceAll(loop, "%", "b") + strings.ReplaceAll(loop, "%", "c") +
		strings.ReplaceAll(loop, "%", "d") + strings.ReplaceAll(loop, "%", "e") + "true)))))"
	cases := []struct {
		name, when string // as written in the document, from line 5, column 9 on
		want       string
	}{
		{"misspelt field", "action.amout_usd > 100", "5:15 undefined field 'amout_usd'"},
		{"misspelt variable", "acton.payload.x == 1", "5:9 undeclared reference to 'acton'"},
		{"unknown function", "action.agent_name.shout() == ''", "5:32 undeclared reference to 'shout'"},
		{"syntax", "action.amount_usd >", "5:28 Syntax error"},
		{"types", "action.agent_name > 3", "5:27 found no matching overload for '_>_' applied to '(string, int)'"},
		{"a number", "action.amount_usd", "5:9 when must be a condition, true or false, and is of type double"},
		{"anything", "action.payload.flag", "5:9 when must be a condition, true or false, and is of type dyn"},
		{"an object", "'action{has_amount: true}.has_amount'", "5:16 objects of a type cannot be made"},
		{"pattern from outside", "action.action_name.matches(action.payload.p)", "5:35 the pattern of matches must be written out"},
		{"broken pattern", "action.action_name.matches('(')", "5:36 invalid matches argument"},
		{"huge pattern", "action.action_name.matches('(a{1000}){1000}')", "5:36 invalid matches argument"},
		{"large pattern", "action.action_name.matches('[a-z]{900}[0-9]{900}x{900}')", "5:36 regex program size 2702 exceeds limit of 200"},
		{"repetitions", "action.payload.f.matches('(a|b|c|d|aa|ab|ac|ad|aaa|aab){1,90}z$')", "5:34 regex program size 903 exceeds limit of 200"},
		{"patterns over a payload's keys", "action.payload.o.exists(k, k.matches('a'))", "5:9 with this rule the patterns of the set may need more than the 2000000 steps"},
		{"patterns over parts of a text", "action.payload.s.split(',').exists(k, k.matches('a'))", "5:9 with this rule the patterns"},
		{"nested", strings.Repeat("(", 60) + "true" + strings.Repeat(")", 60), "5:9 expression recursion limit exceeded: 50"},
		{"loop in a loop over the payload", "action.payload.a.all(i, i.b.all(j, j > 1))", "5:9 when may cost 5006004 units, more than the 100000 a rule may"},
		{"five loops over constants", "'" + nested + "'", "5:9 when may cost 455551 units"},
		{"patterns over a payload's list", "action.payload.a.exists(i, i.matches('^(x|y|z)+$'))", "5:9 when may cost"},
		{"plain over two lines", "action.amount_usd > 1 &&\n    action.amout_usd > 2", "6:11 undefined field 'amout_usd'"},
		{"single quotes", "'''it'' == action.x'", "5:26 undefined field 'x'"},
		{"double quotes", `"'\u00e4\x41\t' != action.x"`, "5:34 undefined field 'x'"},
		{"double quotes, continued", "\"true && \\\n    action.x\"", "6:11 undefined field 'x'"},
		{"literal block", "|\n    action.amount_usd > 1 &&\n\n      (action.amout_usd > 2)\n", "8:14 undefined field 'amout_usd'"},
		{"literal block, indented by hand", "|1\n    action.amount_usd > 1 &&\n\n      (action.amout_usd > 2)\n", "8:14 undefined field 'amout_usd'"},
		{"folded block", ">-\n    action.amount_usd > 1 &&\n    action.amout_usd > 2\n\n", "7:11 undefined field 'amout_usd'"},
		{"end of a block", "|\n    action.amount_usd >\n  \n", "6:24 Syntax error"},
		{"beyond the first plane", "\"'😀ä' == action.x\"", "5:24 undefined field 'x'"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			_, err := Parse([]byte(rule+c.when), YAML)
			wantProblem(t, err, c.want)
		})
	}
}

// A fault in a condition has the correct place in a JSON document too.
func TestParseFindsPlacesInJSON(t *testing.T) {
	t.Parallel()
	const before = "{\"rules\": [{\"name\": \"a\", \"decision\": \"deny\", \"reason\": \"r\",\r\n\"when\":\t"
	cases := []struct {
		name, when, want string
	}{
		{"plain", `"action.x"`, "2:16 undefined field 'x'"},
		{"escapes", `"'\ud83d\ude00\u00e4\"'\n != action.x"`, "2:44 undefined field 'x'"},
		{"line breaks", `"true &&\n\n\taction.x"`, "2:29 undefined field 'x'"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			_, err := Parse([]byte(before+c.when+"}]}"), JSON)
			wantProblem(t, err, c.want)
		})
	}
}

// A set whose rules may cost too much together is refused even if each rule alone is not.
func TestParseBoundsTheCostOfASet(t *testing.T) {
	t.Parallel()
	dear := "{name: rule %, decision: deny, reason: r, when: 'action.payload.a.exists(i, i.b == \"x\" || i.c == \"y\" || i.d.contains(\"z\"))'}\n"
	var list strings.Builder
	for i := range 60 {
		list.WriteString("- " + strings.ReplaceAll(dear, "%", strconv.Itoa(i)))
	}
	_, err := Parse([]byte("rules:\n"+list.String()), YAML)
	if err == nil || !strings.Contains(err.Error(), "the set may cost more than the 1000000") {
		t.Errorf("got %v, want the set refused", err)
	}
	if _, err := Parse([]byte("rules:\n- "+dear), YAML); err != nil {
		t.Errorf("one of the rules alone: %v", err)
	}
}
