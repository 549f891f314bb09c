package httpapi_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/chromedp"
	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"

	"countersign/internal/browsertest"
	"countersign/internal/httpapi"
	"countersign/internal/service"
	"countersign/internal/servicetest"
)

// tab is a real browser's tab, with everything that its console said.
type tab struct {
	ctx     context.Context
	console func(yield func(chromedp.ConsoleMessage, error) bool)
}

func openTab(t *testing.T) *tab {
	t.Helper()
	limit := 2 * time.Minute
	if os.Getenv(vectorsVariable) != "" {
		limit = time.Hour
	}
	ctx := browsertest.Open(t, limit)
	return &tab{ctx: ctx, console: chromedp.Console(ctx)}
}

func (b *tab) do(t *testing.T, steps ...chromedp.Action[chromedp.Void]) {
	t.Helper()
	if err := chromedp.Do(b.ctx, steps...); err != nil {
		t.Fatal(err)
	}
}

// ask evaluates an expression, and waits for what it promises.
func ask[T any](t *testing.T, b *tab, expression string) T {
	t.Helper()
	value, err := chromedp.Run(b.ctx, chromedp.Evaluate[T](expression, chromedp.EvalAwaitPromise))
	if err != nil {
		t.Fatalf("%.300s: %v", expression, err)
	}
	return value
}

func (b *tab) says(t *testing.T, texts ...string) {
	t.Helper()
	page := ask[string](t, b, "document.body.innerText")
	for _, text := range texts {
		if !strings.Contains(page, text) {
			t.Errorf("the page does not say %q:\n%s", text, page)
		}
	}
}

// quiet checks that the console said nothing: no error of a script, no breach of the
// content policy.
func (b *tab) quiet(t *testing.T) {
	t.Helper()
	const last = "the last message"
	ask[bool](t, b, `console.log("`+last+`"), true`)
	for message, err := range b.console {
		if err != nil {
			t.Fatal(err)
		}
		if message.Text == last {
			return
		}
		t.Errorf("the browser's console says %s", message)
	}
	t.Fatal("the browser's console ended early")
}

// fits checks that nothing is wider than a phone.
func (b *tab) fits(t *testing.T) {
	t.Helper()
	b.do(t, chromedp.EmulateViewport(390, 844, chromedp.EmulateMobile))
	if over := ask[int](t, b, "document.documentElement.scrollWidth - document.documentElement.clientWidth"); over > 0 {
		t.Errorf("the page is %d pixels wider than a phone", over)
	}
}

// verdict waits until the page has one.
func (b *tab) verdict(t *testing.T) string {
	t.Helper()
	return ask[string](t, b, `new Promise((done) => {
		const look = () => document.body.dataset.verdict ? done(document.body.dataset.verdict) : requestAnimationFrame(look);
		look();
	})`)
}

// drop lets go of a file over the page, as a hand does that comes from the desktop.
func (b *tab) drop(t *testing.T, name string, content []byte) {
	t.Helper()
	ask[bool](t, b, fmt.Sprintf(`(() => {
		delete document.body.dataset.verdict;
		const transfer = new DataTransfer();
		transfer.items.add(new File([Uint8Array.from(atob(%q), (c) => c.charCodeAt(0))], %q));
		document.getElementById("drop").dispatchEvent(new DragEvent("drop", { bubbles: true, cancelable: true, dataTransfer: transfer }));
		return true;
	})()`, base64.StdEncoding.EncodeToString(content), name))
}

// fill writes into a field as its reader would.
func (b *tab) fill(t *testing.T, id, value string) {
	t.Helper()
	ask[bool](t, b, fmt.Sprintf(`(() => {
		delete document.body.dataset.verdict;
		const field = document.getElementById(%q);
		field.value = %q;
		field.dispatchEvent(new Event("input", { bubbles: true }));
		return true;
	})()`, id, value))
}

// verifierPage serves the page alone, without a store behind it.
func verifierPage(t *testing.T) string {
	t.Helper()
	server := httptest.NewServer(httpapi.New(httpapi.Config{Service: new(service.Service)}).Handler())
	t.Cleanup(server.Close)
	return server.URL + "/verify"
}

// vectorsVariable names a larger file of the same form as the vectors, which the nightly
// run makes.
const vectorsVariable = "COUNTERSIGN_BUNDLE_VECTORS"

type bundleVectors struct {
	Trust   map[string]json.RawMessage
	Refused map[string]json.RawMessage `json:"refused_trust"`
	Bases   map[string]string
	Files   []struct{ Name, Text string }
	Cases   []struct {
		Name, Verdict, Trust string
		Failed               []string
		NotChecked           []string `json:"not_checked"`
	}
}

func readVectors(t *testing.T) (text string, vectors bundleVectors) {
	t.Helper()
	path := os.Getenv(vectorsVariable)
	if path == "" {
		path = "../../testdata/vectors/bundles.json"
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, &vectors); err != nil {
		t.Fatal(err)
	}
	return string(data), vectors
}

// judgeVectors makes each case of its base and edits, as the file describes, and gives what
// the page's verifier says of it: the verdict, what failed and what was not checked.
const judgeVectors = `(async (vectors) => {
	const canonical = (v) => Array.isArray(v) ? "[" + v.map(canonical).join() + "]" : v !== null && typeof v === "object" ?
		"{" + Object.keys(v).sort().map((k) => JSON.stringify(k) + ":" + canonical(v[k])).join() + "}" : JSON.stringify(v);
	const [encoder, decoder] = [new TextEncoder(), new TextDecoder("utf-8", { fatal: true, ignoreBOM: true })];
	const make = ({ base, edits }) => {
		const document = JSON.parse(vectors.bases[base]);
		for (const { path, op, value = null, splice } of edits ?? []) {
			const [last, around] = [path.at(-1), path.slice(0, -1).reduce((v, step) => v[step], document)];
			if (op === "set") around[last] = value;
			else if (op === "remove") around.splice(last, 1);
			else if (op === "insert") around.splice(last, 0, value);
			else {
				const bytes = Array.from(encoder.encode(around[last]));
				bytes.splice(splice.at, splice.remove, ...encoder.encode(splice.insert));
				around[last] = decoder.decode(Uint8Array.from(bytes));
			}
		}
		return encoder.encode(canonical(document));
	};
	const judge = async (bytes, trust) => {
		const { verdict, checks } = await verifyBundle(bytes, trust);
		const those = (status) => checks.filter((check) => check.status === status).map(({ name }) => name).join();
		return [verdict, those("fail"), those("not_checked")].join(" | ");
	};
	const judged = { cases: [], files: [], accepted: [] };
	for (const [name, trust] of Object.entries(vectors.refused_trust))
		await judge(make({ base: "bundle" }), trust).then(() => judged.accepted.push(name), (error) => { if (!error.isTrust) throw error; });
	for (let from = 0; from < vectors.cases.length; from += 50)
		judged.cases.push(...await Promise.all(vectors.cases.slice(from, from + 50).map((c) => judge(make(c), vectors.trust[c.trust]))));
	for (const f of vectors.files) judged.files.push(await judge(encoder.encode(f.text), vectors.trust.all));
	return judged;
})`

// The page's verifier comes to the verdict of the vectors on each bundle, whole or altered,
// by the checks that they name, and takes no other file for a bundle.
func TestVerifierPageJudgesTheVectors(t *testing.T) {
	t.Parallel()
	text, vectors := readVectors(t)
	b := openTab(t)
	b.do(t, chromedp.Navigate(verifierPage(t)))
	began := time.Now()
	judged := ask[struct{ Cases, Files, Accepted []string }](t, b, judgeVectors+"("+text+")")
	t.Logf("%d cases in %v", len(vectors.Cases), time.Since(began))
	if len(judged.Cases) != len(vectors.Cases) || len(judged.Files) != len(vectors.Files) || len(vectors.Cases) < 500 {
		t.Fatalf("judged %d cases of %d, and %d files of %d", len(judged.Cases), len(vectors.Cases), len(judged.Files), len(vectors.Files))
	}
	for i, c := range vectors.Cases {
		if want := c.Verdict + " | " + strings.Join(c.Failed, ",") + " | " + strings.Join(c.NotChecked, ","); judged.Cases[i] != want {
			t.Errorf("%s, under %s: %s, want %s", c.Name, c.Trust, judged.Cases[i], want)
		}
	}
	for i, f := range vectors.Files {
		if want := "no_bundle |  | "; judged.Files[i] != want {
			t.Errorf("%s: %s, want %s", f.Name, judged.Files[i], want)
		}
	}
	if len(judged.Accepted) > 0 || len(vectors.Refused) < 10 {
		t.Errorf("accepted %q of %d trusts that every verifier refuses", judged.Accepted, len(vectors.Refused))
	}
	b.quiet(t)
}

// trustOf gives the form's content for one of the vectors' trusts.
func trustOf(t *testing.T, vectors *bundleVectors, name string) (logKey, witnesses string) {
	t.Helper()
	var trust struct {
		LogKeys   []string `json:"log_keys"`
		Witnesses []string
	}
	if err := json.Unmarshal(vectors.Trust[name], &trust); err != nil {
		t.Fatal(err)
	}
	return strings.Join(trust.LogKeys, " "), strings.Join(trust.Witnesses, "\n")
}

// judgeFiles drops files on the page as a reader would, and reads what it says.
func judgeFiles(t *testing.T, b *tab, vectors *bundleVectors) {
	t.Helper()
	logKey, witnesses := trustOf(t, vectors, "all")
	want := func(verdict string, texts ...string) {
		t.Helper()
		if got := b.verdict(t); got != verdict {
			t.Errorf("the verdict is %s, want %s", got, verdict)
		}
		b.says(t, texts...)
	}
	good := []byte(vectors.Bases["bundle"])
	b.drop(t, "good.bundle", good)
	want("indeterminate", "Not verified yet: the log key is missing", "What the file claims (not proven)", "CSN-2026-00003")
	b.fill(t, "log-key", logKey)
	want("verified", "Verified: this receipt is in the organization’s log", "You named no witnesses", "What the receipt says", "CSN-2026-00003", "acme", "good.bundle")
	b.fill(t, "witnesses", witnesses)
	b.verdict(t)
	b.fill(t, "quorum", "2")
	want("verified", "seen by 2 of 3 witnesses")
	b.fits(t)
	b.fill(t, "quorum", "3")
	want("failed", "Do not rely on this file", "Seen by 2 of 3 witnesses, but 3 are required.")
	b.fill(t, "quorum", "4")
	want("none", "Nothing was checked", "You require 4 witnesses but named 3.")
	b.fill(t, "quorum", "2")
	b.verdict(t)
	b.fill(t, "log-key", logKey[:len(logKey)-4])
	want("none", "The log key")
	b.fill(t, "log-key", logKey)
	b.verdict(t)
	b.drop(t, "altered.bundle", bytes.Replace(good, []byte("1 agent took 2 actions."), []byte("1 agent took 1 actions."), 1))
	want("failed", "Do not rely on this file", "altered.bundle", "The receipt does not match the hash in the file.")
	b.fits(t)
	b.drop(t, "forged.bundle", []byte(vectors.Bases["forged"]))
	want("failed", "The log’s state is not signed with the log key that you entered.")
	b.drop(t, "share.bundle", []byte(vectors.Bases["share"]))
	want("verified", "The receipt alone: its events are not in the file.")
	b.drop(t, "letter.txt", []byte("Dear Sir or Madam"))
	want("no_bundle", "This is not an evidence file", "The file is not JSON.")
	if ask[string](t, b, `JSON.stringify(localStorage) + JSON.stringify(sessionStorage)`) != "{}{}" {
		t.Error("the page has stored something")
	}
}

// What the page shows is about the file that was chosen last and what was entered last: not
// about an earlier one while that is read, if it cannot be read, or if it is read more slowly.
func TestVerifierPageShowsNoEarlierResult(t *testing.T) {
	t.Parallel()
	_, vectors := readVectors(t)
	b := openTab(t)
	b.do(t, chromedp.Navigate(verifierPage(t)))
	logKey, witnesses := trustOf(t, &vectors, "all")
	b.fill(t, "log-key", logKey)
	good := []byte(vectors.Bases["bundle"])
	verified := func() {
		t.Helper()
		b.drop(t, "good.bundle", good)
		if got := b.verdict(t); got != "verified" {
			t.Fatalf("the verdict is %s", got)
		}
	}
	// choose drops something of which a promise holds the content.
	choose := func(name, content string) {
		t.Helper()
		ask[bool](t, b, fmt.Sprintf(`(() => {
			const event = new Event("drop", { bubbles: true, cancelable: true });
			event.dataTransfer = { files: [{ name: %q, size: 5, arrayBuffer: () => %s }] };
			document.getElementById("drop").dispatchEvent(event);
			return true;
		})()`, name, content))
	}
	silent := func(when string) {
		t.Helper()
		if page := ask[string](t, b, "document.body.innerText"); strings.Contains(page, "Verified") || strings.Contains(page, "CSN-2026-00003") {
			t.Errorf("%s, the page still says:\n%s", when, page)
		}
	}
	verified()
	choose("folder.bundle", `Promise.reject(new DOMException("a folder"))`)
	if got := b.verdict(t); got != "none" {
		t.Errorf("a file that cannot be read: %s", got)
	}
	b.says(t, "folder.bundle", "The file could not be read.")
	silent("after a file that cannot be read")

	verified()
	choose("slow.bundle", `new Promise((done) => { globalThis.finish = () => done(new ArrayBuffer(5)); })`)
	silent("while a file is read")
	verified()
	ask[bool](t, b, `finish(), new Promise((done) => setTimeout(() => done(true), 100))`)
	if got := b.verdict(t); got != "verified" {
		t.Errorf("a file that was chosen earlier and read later: %s", got)
	}

	b.fill(t, "witnesses", witnesses)
	verified()
	ask[bool](t, b, `document.getElementById("more").open = true`)
	b.do(t, chromedp.SendKeys(chromedp.ID("quorum"), "e"))
	if got := b.verdict(t); got != "none" {
		t.Errorf("a quorum that is no number: %s", got)
	}
	b.says(t, "The number of required witnesses")
	b.quiet(t)
}

// A file that is chosen again is read again: it may have been replaced, or could not be read before.
func TestVerifierPageReadsAFileAgain(t *testing.T) {
	t.Parallel()
	_, vectors := readVectors(t)
	file := filepath.Join(t.TempDir(), "evidence.bundle")
	b := openTab(t)
	b.do(t, chromedp.Navigate(verifierPage(t)))
	for _, c := range []struct{ content, want string }{{"cut off", "no_bundle"}, {vectors.Bases["bundle"], "indeterminate"}} {
		if err := os.WriteFile(file, []byte(c.content), 0o600); err != nil {
			t.Fatal(err)
		}
		ask[bool](t, b, "delete document.body.dataset.verdict")
		b.do(t, chromedp.SetUploadFiles(chromedp.ID("file"), []string{file}), chromedp.WaitReady(chromedp.CSS("body[data-verdict]")))
		if got := b.verdict(t); got != c.want {
			t.Errorf("the verdict on the file is %s, want %s", got, c.want)
		}
	}
	b.quiet(t)
}

// Texts of any length are read, in time that grows with the length.
func TestVerifierPageReadsLongTexts(t *testing.T) {
	t.Parallel()
	_, vectors := readVectors(t)
	b := openTab(t)
	b.do(t, chromedp.Navigate(verifierPage(t)))
	judged := ask[map[string]string](t, b, `(async (share) => {
		const judge = async (change) => {
			const file = new TextEncoder().encode(JSON.stringify({ ...share, ...change }));
			const { problem, receipt, checks } = await verifyBundle(file, {});
			return problem ?? (receipt === null ? "unread" : "read") + " " + checks.find(({ name }) => name === "anchors").status;
		};
		const hash = "sha256:" + "0".repeat(64);
		const anchors = Array(50_000).fill({ digest: hash, method: "", proof: "", subject: "a" });
		return {
			"a long string": await judge({ anchors: [], receipt: '{"z":"' + "x".repeat(2e7) + '"}' }),
			"many escapes": await judge({ anchors: [], receipt: '{"z":"' + '\\"'.repeat(4e6) + '"}' }),
			"many zeros": await judge({ anchors: [], receipt: '{"z":1.' + "0".repeat(1e6) + "1}" }),
			"a long exponent": await judge({ anchors: [], receipt: '{"z":0e' + "1".repeat(1e6) + "}" }),
			"many anchors": await judge({ anchors, receipt: '{"approvals":[' + "{},".repeat(50_000) + '{"approval_hash":"' + hash + '","approval_id":"a"}]}' }),
		};
	})(`+vectors.Bases["share"]+`)`)
	want := map[string]string{
		"a long string": "read not_checked", "many escapes": "read not_checked", "many zeros": "unread not_checked",
		"a long exponent": "read not_checked", "many anchors": "read not_checked",
	}
	if !maps.Equal(judged, want) {
		t.Errorf("judged %v, want %v", judged, want)
	}
	b.quiet(t)
}

// A reader drops files on the page that the server shows, and reads verdicts.
func TestVerifierPageFromTheServer(t *testing.T) {
	t.Parallel()
	_, vectors := readVectors(t)
	b := openTab(t)
	b.do(t, chromedp.Navigate(verifierPage(t)))
	judgeFiles(t, b, &vectors)
	if ask[bool](t, b, `document.getElementById("online").hidden`) {
		t.Error("the page does not lead to the check by a receipt's id")
	}
	// The content policy forbids what a script that got in would try.
	refused := ask[bool](t, b, `fetch("/healthz").then(() => false, () => true)`)
	if !refused {
		t.Error("the page can reach the server")
	}
}

// Saved to a file the page does the same without a network, and asks for nothing.
func TestVerifierPageFromAFile(t *testing.T) {
	t.Parallel()
	_, vectors := readVectors(t)
	response, err := servicetest.Client.Get(verifierPage(t))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	var page bytes.Buffer
	if _, err := page.ReadFrom(response.Body); err != nil {
		t.Fatal(err)
	}
	saved := filepath.Join(t.TempDir(), "verify.html")
	if err := os.WriteFile(saved, page.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	b := openTab(t)
	b.do(t, chromedp.Func(func(ctx context.Context, _ *chromedp.Target) error {
		if _, err := chromedp.Call(ctx, network.Enable, network.EnableParams{}); err != nil {
			return err
		}
		_, err := chromedp.Call(ctx, network.OverrideNetworkState, network.OverrideNetworkStateParams{Offline: true})
		return err
	}))
	b.do(t, chromedp.Navigate((&url.URL{Scheme: "file", Path: saved}).String()))
	judgeFiles(t, b, &vectors)
	if !ask[bool](t, b, `document.getElementById("online").hidden`) {
		t.Error("the page offers a server that it does not have")
	}
	if asked := ask[[]string](t, b, `performance.getEntriesByType("resource").map(({ name }) => name)`); len(asked) > 0 {
		t.Errorf("the page asked for %v", asked)
	}
	b.quiet(t)
}

// Where the browser lacks a part of the cryptography, the page says which checks it could not
// make, and nothing is verified.
func TestVerifierPageWithoutCryptography(t *testing.T) {
	t.Parallel()
	_, vectors := readVectors(t)
	page := verifierPage(t)
	address, err := url.Parse(page)
	if err != nil {
		t.Fatal(err)
	}
	b := openTab(t)
	b.do(t, chromedp.Navigate("http://"+browsertest.Elsewhere+":"+address.Port()+"/verify"))
	if ask[bool](t, b, "isSecureContext") {
		t.Fatal("the browser trusts this address, so the test shows nothing")
	}
	logKey, _ := trustOf(t, &vectors, "log")
	b.fill(t, "log-key", logKey)
	b.drop(t, "good.bundle", []byte(vectors.Bases["bundle"]))
	if got := b.verdict(t); got != "indeterminate" {
		t.Errorf("the verdict is %s", got)
	}
	b.says(t, "Nothing was checked: this browser does not let this page use cryptography", "HTTPS or from a file")

	// A browser that hashes and knows no Ed25519.
	b.do(t, chromedp.Navigate(page))
	ask[bool](t, b, `(() => {
		const known = crypto.subtle.importKey.bind(crypto.subtle);
		crypto.subtle.importKey = (format, data, algorithm, ...rest) => algorithm.name === "Ed25519" ?
			Promise.reject(new DOMException("Unrecognized name.", "NotSupportedError")) : known(format, data, algorithm, ...rest);
		return true;
	})()`)
	b.fill(t, "log-key", logKey)
	b.drop(t, "good.bundle", []byte(vectors.Bases["bundle"]))
	if got := b.verdict(t); got != "indeterminate" {
		t.Errorf("the verdict is %s", got)
	}
	b.says(t, "Not verified: this browser cannot check the signatures", "This browser cannot check Ed25519 signatures", "All 4 entries of the record match the receipt.")
	b.drop(t, "altered.bundle", []byte(strings.Replace(vectors.Bases["bundle"], "1 agent took 2 actions.", "1 agent took 1 actions.", 1)))
	if got := b.verdict(t); got != "failed" {
		t.Errorf("the verdict on an altered file is %s", got)
	}
	b.quiet(t)
}

// largeBundle is a bundle of so many events with payloads, in a log of its own.
func largeBundle(t *testing.T, events int) (document []byte, logKey string) {
	t.Helper()
	const chain = "00000001-0000-4000-8000-000000000001"
	secret, logKey, err := note.GenerateKey(zeros{}, "large.example/log")
	if err != nil {
		t.Fatal(err)
	}
	signer, err := note.NewSigner(secret)
	if err != nil {
		t.Fatal(err)
	}
	sign := func(text string) string {
		signed, err := note.Sign(&note.Note{Text: text}, signer)
		if err != nil {
			t.Fatal(err)
		}
		return string(signed)
	}
	digest := sha256.Sum256(nil)
	entries := make([]any, events)
	for i := range entries {
		payload := fmt.Sprintf(`{"amount_usd":%d,"note":%q}`, i, strings.Repeat("x", 500))
		sum := sha256.Sum256([]byte(payload))
		body := fmt.Sprintf(`{"action_name":"pay","action_type":"tool_call","chain_id":%q,"payload_sha256":%q,"reason":%q,"redactions_sha256":null,"sequence":%d}`,
			chain, hex.EncodeToString(sum[:]), strings.Repeat("y", 500), i+1)
		digest = sha256.Sum256(append(digest[:], body...))
		entries[i] = map[string]any{"body": body, "payload": payload, "redactions": nil}
	}
	receipt := fmt.Sprintf(`{"approvals":[],"chain_id":%q,"events_digest":"sha256:%x","format":"countersign-receipt-v2","receipt_number":"CSN-2026-00001","total_actions":%d}`, chain, digest, events)
	root := tlog.RecordHash([]byte(receipt))
	document, err = json.Marshal(map[string]any{ // the names come out sorted
		"anchors": []any{}, "approvals": []any{}, "entries": entries, "format": "countersign-bundle-v1", "generated_at": "2026-11-16T09:30:00.000Z",
		"log_proof": "c2sp.org/tlog-proof@v1\nindex 0\n\n" + sign("large.example/log\n1\n"+root.String()+"\n"),
		"receipt":   receipt, "receipt_hash": fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(receipt))),
		"signing_keys": sign("countersign-signing-keys-v1\nlarge.example/log\n" + `{"keys":[],"signed_at":"2026-11-16T09:30:00.000Z"}` + "\n"),
	})
	if err != nil {
		t.Fatal(err)
	}
	return document, logKey
}

// zeros is a source for keys that need not be secret.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// A bundle of a thousand events is verified; the log of the test says in what time.
func TestVerifierPageJudgesAThousandEvents(t *testing.T) {
	t.Parallel()
	document, logKey := largeBundle(t, 1000)
	b := openTab(t)
	b.do(t, chromedp.Navigate(verifierPage(t)))
	got := ask[struct {
		Verdict string
		Took    float64
		Failed  []string
	}](t, b, fmt.Sprintf(`(async () => {
		const bytes = Uint8Array.from(atob(%q), (c) => c.charCodeAt(0));
		const began = performance.now();
		const { verdict, checks } = await verifyBundle(bytes, { log_keys: [%q] });
		const failed = checks.filter(({ status }) => status === "fail").map(({ name, reason }) => name + ": " + reason);
		return { Verdict: verdict, Took: performance.now() - began, Failed: failed };
	})()`, base64.StdEncoding.EncodeToString(document), logKey))
	t.Logf("%d bytes in %.0f ms", len(document), got.Took)
	if got.Verdict != "verified" {
		t.Errorf("the verdict is %s: %v", got.Verdict, got.Failed)
	}
}
