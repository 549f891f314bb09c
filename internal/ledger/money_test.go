package ledger

import (
	"encoding/json"
	"strings"
	"testing"
)

// Money is added without rounding, from cents to amounts beyond the precision of a
// float.
func TestMoneyIsExact(t *testing.T) {
	t.Parallel()
	sum := Money{}
	for range 10 {
		sum = sum.Add(MoneyOf(0.1))
	}
	if sum.Cmp(MoneyOf(1)) != 0 || sum.Float() != 1 || sum.Fixed() != "1.00" {
		t.Errorf("ten dimes are %s (%v)", sum, sum.Float())
	}
	large := MoneyOf(9_007_199_254_740_991).Add(MoneyOf(0.01))
	if got := large.String(); got != "9007199254740991.01" {
		t.Errorf("a cent is lost: %s", got)
	}
	if MoneyOf(1200.5).Fixed() != "1200.50" || MoneyOf(5).Cmp(MoneyOf(5.01)) >= 0 {
		t.Error("amounts are not compared or shown as amounts")
	}
}

// An amount that was read as a JSON number equals the same amount read as text.
func TestMoneyOfIsWhatWasWritten(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"0", "0.1", "1e-7", "123456789.12", "5000"} {
		var number float64
		if err := json.Unmarshal([]byte(text), &number); err != nil {
			t.Fatal(err)
		}
		parsed, err := ParseMoney(text)
		if err != nil || MoneyOf(number).Cmp(parsed) != 0 {
			t.Errorf("%s is %s as a number and %s, %v as a text", text, MoneyOf(number), parsed, err)
		}
	}
}

// A text that is not a plain decimal number is not an amount.
func TestParseMoneyRefuses(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"", "abc", "1,200", "$5", "0x10", "NaN", "Infinity", strings.Repeat("1", 65)} {
		if m, err := ParseMoney(text); err == nil {
			t.Errorf("%q is read as %s", text, m)
		}
	}
}

// Money is written and read as a JSON number.
func TestMoneyAsJSON(t *testing.T) {
	t.Parallel()
	body, err := json.Marshal(map[string]Money{"a": MoneyOf(1200.5), "b": {}})
	if err != nil || string(body) != `{"a":1200.5,"b":0}` {
		t.Fatalf("written as %s, %v", body, err)
	}
	var back map[string]Money
	if err := json.Unmarshal(body, &back); err != nil || back["a"].Cmp(MoneyOf(1200.5)) != 0 {
		t.Errorf("read back as %v, %v", back, err)
	}
	for _, bad := range []string{`{}`, `true`, `[1]`, `"x"`} {
		var m Money
		if err := json.Unmarshal([]byte(bad), &m); err == nil {
			t.Errorf("%s is read as %s", bad, m)
		}
	}
}

// Amounts for people have cents and separated thousands. A positive amount below a cent is not
// shown as zero.
func TestMoneyForPeople(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"0": "0.00", "0.005": "under 0.01", "0.01": "0.01", "999.999": "1,000.00", "1234.5": "1,234.50", "-1234567": "-1,234,567.00",
		"-999": "-999.00", "100000": "100,000.00",
	} {
		amount, err := ParseMoney(text)
		if err != nil {
			t.Fatal(err)
		}
		if got := amount.Display(); got != want {
			t.Errorf("%s is shown as %q, want %q", text, got, want)
		}
	}
}
