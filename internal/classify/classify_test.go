package classify

import (
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"countersign/internal/canon"
)

// FuzzClassify: the result is always within the limits that the record relies on.
func FuzzClassify(f *testing.F) {
	f.Add("send_invoice", typical, `{"category":"financial","input_tokens":1830}`)
	f.Add("payÉ2Go", `{"Amount":"-US$1,200.50","ids":[1],"url":"//[::1%25x]:1\\@a.b"}`, `{"amount_usd":"?","categories":["llm",1]}`)
	f.Add("x", `{"to":"a@[1.2.3.4]\u3002,b@c.d","rows":1e300,"x":[{"amount":1e300},[{"amount":1e-300}]]}`, `null`)
	f.Fuzz(func(t *testing.T, name, payload, metadata string) {
		p, payloadErr := canon.Parse([]byte(payload))
		m, metadataErr := canon.Parse([]byte(metadata))
		if payloadErr != nil || metadataErr != nil {
			return
		}
		facts := Classify(Input{ActionType: name, ActionName: name, Payload: p, Metadata: m})
		checkBounds(t, facts)
		checkBounds(t, Classify(Input{ActionName: name, Payload: cleaned(p), Metadata: cleaned(m)}))
	})
}

func checkBounds(t *testing.T, facts Facts) {
	t.Helper()
	if !slices.IsSorted(facts.Categories) || !slices.IsSorted(facts.ExternalDomains) {
		t.Errorf("not sorted: %q %q", facts.Categories, facts.ExternalDomains)
	}
	if len(slices.Compact(slices.Clone(facts.ExternalDomains))) != len(facts.ExternalDomains) || len(facts.ExternalDomains) > MaxDomains {
		t.Errorf("doubles or too many: %q", facts.ExternalDomains)
	}
	for _, domain := range facts.ExternalDomains {
		if domain == "" || len(domain) > maxDomain || domain != lowerCase(domain) || strings.ContainsAny(domain, " \t\r\n") {
			t.Errorf("domain %q", domain)
		}
		if _, err := canon.StringValue(domain); err != nil {
			t.Errorf("domain %q: %v", domain, err)
		}
	}
	has := func(category string) bool { return slices.Contains(facts.Categories, category) }
	if facts.Amount != nil && (facts.Amount.IsNegative() || !has(Financial)) {
		t.Errorf("amount %s of %q", facts.Amount, facts.Categories)
	}
	if facts.RecordsModified < 0 || facts.RecordsModified > MaxRecords || facts.RecordsModified > 0 && !has(DataModification) {
		t.Errorf("%d records of %q", facts.RecordsModified, facts.Categories)
	}
	if len(facts.ExternalDomains) > 0 && !has(ExternalCommunication) {
		t.Errorf("domains %q of %q", facts.ExternalDomains, facts.Categories)
	}
	if facts.InputTokens < 0 || facts.InputTokens > MaxTokens || facts.OutputTokens < 0 || facts.OutputTokens > MaxTokens || len(facts.Model) > maxModel {
		t.Errorf("tokens %d, %d of %q", facts.InputTokens, facts.OutputTokens, facts.Model)
	}
}

// TestMetadataOnlyAdd: whatever categories a caller declares, what was found without them remains.
func TestMetadataOnlyAdd(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		in := Input{
			ActionName: rapid.SampledFrom([]string{"pay", "send_email", "delete_user", "get_payment", "ask_llm", "noop"}).Draw(t, "name"),
			Payload:    valueOf(t, 3),
		}
		bare := Classify(in).Categories
		declared := mustString(rapid.SampledFrom([]string{Financial, DataModification, "none", ""}).Draw(t, "category"))
		metadata, err := canon.ObjectValue(canon.Member{Name: "category", Value: declared}, canon.Member{Name: "categories", Value: valueOf(t, 2)})
		if err != nil {
			t.Fatal(err)
		}
		in.Metadata = metadata
		for _, category := range bare {
			if !slices.Contains(Classify(in).Categories, category) {
				t.Fatalf("%s makes %s vanish", canonical(metadata), category)
			}
		}
	})
}

// A name is split into lower-case words, however it was written.
func TestWords(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":                "",
		"send_email":      "send_email",
		"sendEmail":       "send_email",
		"HTTPServer2":     "http_server_2",
		"sendSMSNow":      "send_sms_now",
		"--a..B  c--":     "a_b_c",
		"A":               "a",
		"s3Upload":        "s_3_upload",
		"ÜberPay":         "Über_pay",
		"payload":         "payload",
		"already__normal": "already_normal",
	} {
		if got := string(appendNormal(nil, text)); got != want {
			t.Errorf("%q has the words %q, want %q", text, got, want)
		}
		if isNormal(text) && want != text {
			t.Errorf("%q is taken for normal", text)
		}
	}
}
