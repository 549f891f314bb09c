package httpapi_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"

	"countersign/internal/testdb"
)

// bundleAround is an evidence file with a receipt in it, as far as the page of a link reads it.
func bundleAround(t *testing.T, receipt []byte) []byte {
	t.Helper()
	document, err := json.Marshal(map[string]any{ // the names come out sorted
		"anchors": []any{}, "approvals": nil, "entries": nil, "format": "countersign-bundle-v1", "generated_at": "", "log_proof": "",
		"receipt": string(receipt), "receipt_hash": fmt.Sprintf("sha256:%x", sha256.Sum256(receipt)), "signing_keys": nil,
	})
	if err != nil {
		t.Fatal(err)
	}
	return document
}

// answer waits until the page of a link has said something about a copy.
func (b *tab) answer(t *testing.T) string {
	t.Helper()
	return ask[string](t, b, `new Promise((done) => {
		const look = () => document.getElementById("answer").textContent ? done(document.getElementById("answer").textContent) : requestAnimationFrame(look);
		look();
	})`)
}

// Whoever holds a copy drops it on the page of a link and learns whether the link is about it.
// Only its hash leaves the browser.
func TestPublicPageComparesACopy(t *testing.T) {
	t.Parallel()
	s := start(t, openDatabase(t, testdb.SQLite(t)), setup{})
	sealed, other := s.seal(t, s.acme.agent, "planted-held"), s.seal(t, s.acme.agent, "another")
	token := s.issue(t, s.acme.admin, "receipt", *sealed.ReceiptID)
	served := s.get(t, s.acme.member, "/v1/receipts/"+*sealed.ReceiptID).expect(t, http.StatusOK).body
	var indented bytes.Buffer
	if err := json.Indent(&indented, served, "", "  "); err != nil {
		t.Fatal(err)
	}
	b := openTab(t)
	b.do(t, chromedp.Navigate(s.base+token.Path))
	b.says(t, "This receipt is verified", "What this rests on", "only its hash is sent")
	ask[bool](t, b, `(() => {
		window.sent = [];
		const real = window.fetch;
		window.fetch = (address, options) => { window.sent.push(options.body); return real(address, options); };
		return true;
	})()`)
	for name, c := range map[string]struct {
		copy []byte
		want string
	}{
		"receipt.json":   {served, "✓ This link is about exactly this receipt"},
		"indented.json":  {indented.Bytes(), "✓ This link is about exactly this receipt"},
		"receipt.bundle": {bundleAround(t, sealed.Receipt), "✓ This link is about exactly this receipt"},
		"other.json":     {other.Receipt, "✗ other.json does not match"},
		"other.bundle":   {bundleAround(t, other.Receipt), "✗ other.bundle does not match"},
		"changed.json":   {bytes.Replace(served, []byte(`"total_actions":1`), []byte(`"total_actions":2`), 1), "✗ changed.json does not match"},
		"twice.json":     {bytes.Replace(served, []byte(`{`), []byte(`{"summary":"another",`), 1), "This file is not a receipt, a decision record or an evidence file"},
		"letter.txt":     {[]byte("Dear Sir or Madam"), "This file is not a receipt, a decision record or an evidence file"},
		"picture.png":    {[]byte("\x89PNG\xff"), "This file is not a receipt, a decision record or an evidence file"},
	} {
		ask[bool](t, b, `document.getElementById("answer").textContent = "", true`)
		b.drop(t, name, c.copy)
		if got := b.answer(t); !strings.HasPrefix(got, c.want) {
			t.Errorf("%s: the page says %q, want %q", name, got, c.want)
		}
	}
	for _, sent := range ask[[]string](t, b, "window.sent") {
		if len(sent) != len(`{"hash":""}`)+len(noHash) {
			t.Errorf("the page sent %s", sent)
		}
	}
	b.fits(t)
	b.quiet(t)
}

// The name of a copy cannot turn the direction of what the page says about it.
func TestPublicPageIsNotTurnedByTheNameOfACopy(t *testing.T) {
	t.Parallel()
	s := start(t, openDatabase(t, testdb.SQLite(t)), setup{})
	sealed, other := s.seal(t, s.acme.agent, "held"), s.seal(t, s.acme.agent, "another")
	token := s.issue(t, s.acme.admin, "receipt", *sealed.ReceiptID)
	b := openTab(t)
	b.do(t, chromedp.Navigate(s.base+token.Path))
	b.drop(t, "a\u202eb.json", other.Receipt)
	if got := b.answer(t); !strings.Contains(got, "does not match") {
		t.Fatalf("the page says %q", got)
	}
	if turned := ask[bool](t, b, `(() => {
		const place = (word) => {
			const texts = document.createTreeWalker(document.getElementById("answer"), NodeFilter.SHOW_TEXT);
			for (let text; (text = texts.nextNode()); ) {
				const at = text.data.indexOf(word);
				if (at >= 0) {
					const range = document.createRange();
					range.setStart(text, at);
					range.setEnd(text, at + word.length);
					return range.getBoundingClientRect().left;
				}
			}
		};
		return !(place("does") < place("not") && place("not") < place("match"));
	})()`); turned {
		t.Error("the words after the name are shown in the opposite order")
	}
	b.quiet(t)
}

// The page compares the first decisions of an evidence file with the link. If the file has more, it
// does not say that none matches.
func TestPublicPageSaysWhatItDidNotCompare(t *testing.T) {
	t.Parallel()
	s := start(t, openDatabase(t, testdb.SQLite(t)), setup{})
	asked := s.ask(t, s.acme.agent, s.open(t, s.acme.agent, `{"name":"many"}`))
	token := s.issue(t, s.acme.admin, "approval", asked)
	b := openTab(t)
	b.do(t, chromedp.Navigate(s.base+token.Path))
	for decisions, want := range map[int]string{
		20: "✗ many.bundle does not match",
		21: "None of the first 20 of the 21 decisions in many.bundle matches. Enter the hash of another one below.",
	} {
		approvals := make([]any, decisions)
		for i := range approvals {
			approvals[i] = map[string]any{"key_id": nil, "record": fmt.Sprintf(`{"approval_id":"%d"}`, i), "signature": nil}
		}
		document, err := json.Marshal(map[string]any{
			"anchors": []any{}, "approvals": approvals, "entries": []any{}, "format": "countersign-bundle-v1", "generated_at": "", "log_proof": "",
			"receipt": "{}", "receipt_hash": "", "signing_keys": nil,
		})
		if err != nil {
			t.Fatal(err)
		}
		ask[bool](t, b, `document.getElementById("answer").textContent = "", true`)
		b.drop(t, "many.bundle", document)
		if got := b.answer(t); !strings.HasPrefix(got, want) {
			t.Errorf("%d decisions: the page says %q, want %q", decisions, got, want)
		}
	}
	b.quiet(t)
}

// A file can be chosen again after the comparison could not be made, and the page says why it could not:
// the file, the server, or a link that was revoked meanwhile.
func TestPublicPageComparesAgain(t *testing.T) {
	t.Parallel()
	s := start(t, openDatabase(t, testdb.SQLite(t)), setup{})
	sealed := s.seal(t, s.acme.agent, "held")
	token := s.issue(t, s.acme.admin, "receipt", *sealed.ReceiptID)
	file := filepath.Join(t.TempDir(), "receipt.json")
	if err := os.WriteFile(file, sealed.Receipt, 0o600); err != nil {
		t.Fatal(err)
	}
	b := openTab(t)
	b.do(t, chromedp.Navigate(s.base+token.Path))
	ask[bool](t, b, `window.real = window.fetch, window.fetch = () => Promise.reject(new TypeError("no connection")), true`)
	ask[bool](t, b, `window.content = Blob.prototype.arrayBuffer, window.size = Object.getOwnPropertyDescriptor(Blob.prototype, "size"), true`)
	for _, step := range []struct {
		before func()
		want   string
	}{
		{func() {}, "The server did not answer"},
		{func() {
			ask[bool](t, b, `Blob.prototype.arrayBuffer = () => Promise.reject(new DOMException("gone", "NotFoundError")), true`)
		}, "The file could not be read"},
		{func() {
			ask[bool](t, b, `Object.defineProperty(Blob.prototype, "size", { configurable: true, get: () => 64 * 1024 * 1024 + 1 }), true`)
		}, "The file is larger than 64 MiB"},
		{func() {
			ask[bool](t, b, `Object.defineProperty(Blob.prototype, "size", window.size), Blob.prototype.arrayBuffer = window.content, true`)
		}, "The server did not answer"},
		{func() { ask[bool](t, b, "window.fetch = window.real, true") }, "✓ This link is about exactly this receipt"},
		{func() {
			s.post(t, s.acme.admin, "/v1/public-verification-tokens/"+token.ID+"/revoke", "").expect(t, http.StatusOK)
		}, "This link is no longer valid"},
	} {
		step.before()
		ask[bool](t, b, `document.getElementById("answer").textContent = "", true`)
		b.do(t, chromedp.SetUploadFiles(chromedp.ID("file"), []string{file}), chromedp.WaitReady(chromedp.CSS("#answer:not(:empty)")))
		if got := b.answer(t); !strings.HasPrefix(got, step.want) {
			t.Errorf("the page says %q, want %q", got, step.want)
		}
	}
}

// A copy of a decision record, alone or in an evidence file, has the hash that the receipt
// names for the decision.
func TestPublicPageHashesDecisionRecords(t *testing.T) {
	t.Parallel()
	_, vectors := readVectors(t)
	var bundle struct {
		Receipt   string
		Approvals []struct{ Record string }
	}
	if err := json.Unmarshal([]byte(vectors.Bases["bundle"]), &bundle); err != nil {
		t.Fatal(err)
	}
	var receipt struct {
		Approvals []struct {
			Hash string `json:"approval_hash"`
		}
	}
	if err := json.Unmarshal([]byte(bundle.Receipt), &receipt); err != nil {
		t.Fatal(err)
	}
	const record = `{ "status": "approved", "payload_sha256": "00", "approval_id": "a" }`
	canonical := fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(`{"approval_id":"a","payload_sha256":"00","status":"approved"}`)))
	b := openTab(t)
	b.do(t, chromedp.Navigate(verifierPage(t)))
	for name, c := range map[string]struct{ copy, artifact, want string }{
		"in a bundle":         {vectors.Bases["bundle"], "approval", receipt.Approvals[0].Hash},
		"alone":               {record, "approval", canonical},
		"of a receipt's link": {record, "receipt", "This file is a decision record, but the link is about something else."},
		"a share":             {vectors.Bases["share"], "approval", "This evidence file contains no decision, but the link is about one."},
		"a receipt":           {bundle.Receipt, "approval", "This file is a receipt, but the link is about something else."},
	} {
		got := ask[string](t, b, fmt.Sprintf("hashesOfCopy(new TextEncoder().encode(%s), %q).then(String, ({ message }) => message)", quoted(t, c.copy), c.artifact))
		if got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

// quoted writes a text as a literal of JavaScript.
func quoted(t *testing.T, text string) string {
	t.Helper()
	literal, err := json.Marshal(text)
	if err != nil {
		t.Fatal(err)
	}
	return string(literal)
}
