package httpapi_test

import (
	"bytes"
	"net/http"
	"strings"
	"testing"

	"github.com/google/uuid"
)

type receiptCheck struct {
	Valid       bool   `json:"valid"`
	Checked     string `json:"checked"`
	Number      string `json:"receipt_number"`
	ChainID     string `json:"chain_id"`
	GeneratedAt string `json:"generated_at"`
}

// Anyone can check a receipt by its id and learns its number, chain and time, and
// nothing else. Every unknown id gets the same answer.
func TestPublicCheck(t *testing.T) {
	onEachStack(t, func(t *testing.T, s *stack) {
		sealed := s.seal(t, s.acme.agent, "planted-check")
		made := decode[receipt](t, &answer{body: sealed.Receipt})
		want := receiptCheck{true, "full", made.Number, sealed.ID, made.GeneratedAt}
		for _, id := range []string{made.ID, strings.ToUpper(made.ID)} {
			got := s.get(t, credential{}, "/v1/receipts/"+id+"/verify").expect(t, http.StatusOK).
				without(t, planted, made.ID, made.Signature, made.Digest, "acme", s.acme.id, "hmac", "sha256")
			if check := decode[receiptCheck](t, got); check != want {
				t.Errorf("the check says %+v, want %+v", check, want)
			}
		}
		unknown := s.get(t, credential{}, "/v1/receipts/"+uuid.NewString()+"/verify").refuse(t, http.StatusNotFound, "not_found")
		for _, id := range []string{"x", sealed.ID, made.Number, uuid.Nil.String()} {
			if got := s.get(t, credential{}, "/v1/receipts/"+id+"/verify"); got.anonymous() != unknown.anonymous() {
				t.Errorf("%d characters that are no receipt's id are answered %s", len(id), got.body)
			}
		}
	})
}

// Whatever is changed in a stored receipt, the check says so, and shows nothing
// that was not in the answer before.
func TestPublicCheckFindsTampering(t *testing.T) {
	replace := func(old, changed string) func(string) string {
		return func(body string) string { return strings.Replace(body, old, changed, 1) }
	}
	edits := map[string]func(string) string{
		"a number":         replace(`"total_actions":1`, `"total_actions":2`),
		"a name":           replace(`"researcher"`, `"intruder"`),
		"the summary":      replace(`1 action by`, `9 actions by`),
		"the metadata":     replace(`"metadata":null`, `"metadata":{"planted-a":1}`),
		"the digest":       replace(`"events_digest":"sha256:`, `"events_digest":"sha256:0`),
		"the signature":    func(body string) string { return flipAfter(body, `"signature":"hmac-sha256:`) },
		"the organization": replace(`"organization":"acme"`, `"organization":"rival"`),
		"the receipt id":   func(body string) string { return flipAfter(body, `"receipt_id":"`) },
		"a blank":          replace(`,"format":`, `, "format":`),
		"a member more":    replace(`{`, `{"a":1,`),
		"no signature": func(body string) string {
			before, after, _ := strings.Cut(body, `,"signature":"`)
			_, after, _ = strings.Cut(after, `"`)
			return before + after
		},
	}
	onEachStack(t, func(t *testing.T, s *stack) {
		sealed := s.seal(t, s.acme.agent, "tampered")
		path := "/v1/receipts/" + *sealed.ReceiptID + "/verify"
		for name, edit := range edits {
			t.Run(name, func(t *testing.T) {
				s.database.editReceipt(t, *sealed.ReceiptID, edit)
				got := s.get(t, credential{}, path).expect(t, http.StatusOK).without(t, planted, "intruder")
				if decode[receiptCheck](t, got).Valid {
					t.Errorf("the check says %s", got.body)
				}
				s.database.editReceipt(t, *sealed.ReceiptID, func(string) string { return string(sealed.Receipt) })
				if got := s.get(t, credential{}, path); !bytes.Contains(got.body, []byte(`"valid":true`)) {
					t.Errorf("restored, the check says %s", got.body)
				}
			})
		}
	})
}

// flipAfter changes the hexadecimal digit that follows a mark.
func flipAfter(body, mark string) string {
	at := strings.Index(body, mark) + len(mark)
	digit := "0"
	if body[at] == '0' {
		digit = "1"
	}
	return body[:at] + digit + body[at+1:]
}
