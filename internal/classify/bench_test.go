package classify

import (
	"fmt"
	"strings"
	"testing"

	"countersign/internal/canon"
)

// typical is about what an agent sends for one action: ten members, 500 bytes.
const typical = `{"amount_usd":1249.5,"currency":"USD","customer_id":"cus_000000000001","due_date":"2026-03-31",` +
	`"lines":[{"price":399.5,"quantity":3,"sku":"A-100"},{"price":51,"quantity":1,"sku":"B-7"}],"locale":"en",` +
	`"memo":"Please pay within thirty days. The terms are those of the framework contract of last year.",` +
	`"recipient":"accounts@customer.example","subject":"Your invoice for March","webhook_url":"https://hooks.customer.example/in/42",` +
	`"note":"Sent by the billing agent on behalf of the finance team; questions to the desk."}`

func typicalInput(b *testing.B) Input {
	return Input{
		ActionType: "tool_call", ActionName: "send_invoice", Payload: parse(b, []byte(typical)),
		Metadata: parse(b, []byte(`{"category":"financial","input_tokens":1830,"model":"example-large","output_tokens":412}`)),
	}
}

func BenchmarkClassify(b *testing.B) {
	in := typicalInput(b)
	b.ReportAllocs()
	for b.Loop() {
		Classify(in)
	}
}

func BenchmarkRedact(b *testing.B) {
	v := typicalInput(b).Payload
	b.ReportAllocs()
	for b.Loop() {
		cleaned(v)
	}
}

// hostile texts would cost quadratic time if bytes were read once per match. The rates for the two
// sizes must be about the same.
var hostile = map[string]string{
	"ats":         "@",
	"addresses":   "a@b.co",
	"colons":      ":",
	"schemes":     "a://",
	"web":         `http:\`,
	"users":       "http://a,@",
	"hosts":       "http://a.b ",
	"literals":    "a@[",
	"assignments": "a=",
	"names":       "token-",
	"counters":    "tokens=1&",
	"quotes":      `token":"`,
	"secrets":     "sk_.",
	"short":       "sk_ ",
	"dots":        ".",
	"bearers":     "bearer ",
	"humps":       "aB",
	"breaks":      "https:\n",
	"broken":      "w\ns\ns",
	"slashes":     "//",
	"attributes":  `="//a`,
	"passwords":   "a://u:p@",
	"basics":      "basic : ",
	"cookies":     "cookie: a=",
	"headers":     "x-token: ",
	"keys":        pemBegin,
}

var sizes = []int{64 << 10, 1 << 20}

func BenchmarkHostileClassify(b *testing.B) {
	benchmarkHostile(b, func(v canon.Value) { Classify(Input{Payload: v}) })
}

func BenchmarkHostileRedact(b *testing.B) {
	benchmarkHostile(b, func(v canon.Value) { cleaned(v) })
}

func benchmarkHostile(b *testing.B, work func(canon.Value)) {
	for name, unit := range hostile {
		for _, size := range sizes {
			text := strings.Repeat(unit, size/len(unit))
			v, err := canon.ObjectValue(canon.Member{Name: "url", Value: mustString(" " + text)}, canon.Member{Name: text})
			if err != nil {
				b.Fatal(err)
			}
			b.Run(fmt.Sprintf("%s/%dKiB", name, size>>10), func(b *testing.B) {
				b.SetBytes(int64(2 * size))
				for b.Loop() {
					work(v)
				}
			})
		}
	}
}

// BenchmarkHostileShapes has many small values instead of one long text.
func BenchmarkHostileShapes(b *testing.B) {
	for name, unit := range map[string]string{
		"amounts": `{"amount":1e300},{"amount":1e-300}`,
		"domains": `"https://%d.example"`,
		"nested":  strings.Repeat("[", 60) + `{"total":1}` + strings.Repeat("]", 60),
	} {
		for _, size := range sizes {
			var text strings.Builder
			text.WriteString(`{"list":[0`)
			for i := 0; text.Len() < size; i++ {
				text.WriteString("," + strings.ReplaceAll(unit, "%d", fmt.Sprint(i)))
			}
			text.WriteString(`]}`)
			in := Input{ActionName: "pay", Payload: parse(b, []byte(text.String()))}
			b.Run(fmt.Sprintf("%s/%dKiB", name, size>>10), func(b *testing.B) {
				b.SetBytes(int64(text.Len()))
				for b.Loop() {
					Classify(in)
				}
			})
		}
	}
}
