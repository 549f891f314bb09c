package canon

import (
	"strings"
	"testing"
)

// action is about what a client sends for one recorded action.
const action = `{"agent_name":"billing-agent","action_type":"tool_call","action_name":"send_invoice","payload":` +
	`{"customer_id":"cus_000000000001","amount_usd":1249.5,"currency":"USD","recipient":"accounts@customer.example",` +
	`"subject":"Your invoice for March","lines":[{"sku":"A-100","quantity":3,"price":399.5},{"sku":"B-7","quantity":1,"price":51}]},` +
	`"parent_agent_name":"finance-supervisor","metadata":{"model":"example-large","input_tokens":1830,"output_tokens":412,` +
	`"category":"financial"},"idempotency_key":"step-7/attempt-1"}`

func BenchmarkParse(b *testing.B) {
	data := []byte(action)
	b.SetBytes(int64(len(data)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Parse(data); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkAppend(b *testing.B) {
	v := mustParse(b, action)
	var dst []byte
	b.SetBytes(int64(len(action)))
	b.ReportAllocs()
	for b.Loop() {
		dst = v.Append(dst[:0])
	}
}

func BenchmarkCanonicalize(b *testing.B) {
	data := []byte(action)
	b.SetBytes(int64(len(data)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Canonicalize(data); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkParseHostile shows the cost per byte of texts made to be slow.
func BenchmarkParseHostile(b *testing.B) {
	const size = 1 << 20
	for name, text := range map[string]string{
		"number":  strings.Repeat("7", size),
		"arrays":  "[" + strings.Repeat("[1],", size/4) + "1]",
		"objects": "[" + strings.Repeat(`{"":1},`, size/7) + "1]",
		"escapes": `"` + strings.Repeat(`\u00e9`, size/6) + `"`,
		"deep":    strings.Repeat("[", size),
	} {
		b.Run(name, func(b *testing.B) {
			data := []byte(text)
			b.SetBytes(int64(len(data)))
			b.ReportAllocs()
			for b.Loop() {
				_, _ = Parse(data)
			}
		})
	}
}
