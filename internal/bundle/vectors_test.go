package bundle

import (
	"bytes"
	"encoding/json"
	"flag"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"countersign/internal/nightly"
)

var (
	update = flag.Bool("update", false, "write the test vectors anew")
	export = flag.String("export", "", "also write the cases to this file, for the other verifiers")
)

const vectorFile = "../../testdata/vectors/bundles.json"

// vectors are cases for every verifier. A case is a base with edits, so that hundreds of
// them fit into a file.
type vectors struct {
	Description string              `json:"description"`
	Trust       map[string]trustSet `json:"trust"`
	Bases       map[string]string   `json:"bases"`
	Refused     map[string]trustSet `json:"refused_trust"`
	Files       []fileCase          `json:"files"`
	Cases       []bundleCase        `json:"cases"`

	documents map[string]any // the bases, parsed; edits do not change them
}

type trustSet struct {
	LogKeys   []string `json:"log_keys"`
	Witnesses []string `json:"witnesses"`
	Quorum    int      `json:"quorum"`
	RevokedAt string   `json:"log_key_revoked_at,omitempty"`
}

// fileCase is a text that is no bundle.
type fileCase struct {
	Name string `json:"name"`
	Text string `json:"text"`
}

type bundleCase struct {
	Name    string  `json:"name"`
	Base    string  `json:"base"`
	Edits   []edit  `json:"edits,omitempty"`
	Trust   string  `json:"trust"`
	Verdict string  `json:"verdict"`
	Failed  []Check `json:"failed"`
	Skipped []Check `json:"not_checked"`

	wanted []Check // of a case without edits, what it must fail; nil where the test does not say
}

// edit changes the value at a path: it sets it, removes it from its list, inserts before
// it, or replaces some bytes of a string.
type edit struct {
	Path   []any   `json:"path"`
	Op     string  `json:"op"`
	Value  any     `json:"value,omitempty"`
	Splice *splice `json:"splice,omitempty"`
}

// splice removes bytes of a string's UTF-8 and inserts a text in their place.
type splice struct {
	At     int    `json:"at"`
	Remove int    `json:"remove"`
	Insert string `json:"insert"`
}

// apply carries out an edit on a document and returns it.
func (e *edit) apply(document any) any { return e.at(document, e.Path) }

func (e *edit) at(v any, path []any) any {
	if len(path) == 0 {
		if e.Op == "set" {
			return e.Value
		}
		text := v.(string)
		return text[:e.Splice.At] + e.Splice.Insert + text[e.Splice.At+e.Splice.Remove:]
	}
	if name, ok := path[0].(string); ok {
		object := maps.Clone(v.(map[string]any))
		object[name] = e.at(object[name], path[1:])
		return object
	}
	list, i := slices.Clone(v.([]any)), index(path[0])
	switch {
	case len(path) > 1 || e.Op == "set" || e.Op == "splice":
		list[i] = e.at(list[i], path[1:])
	case e.Op == "remove":
		list = slices.Delete(list, i, i+1)
	case e.Op == "insert":
		list = slices.Insert(list, i, e.Value)
	}
	return list
}

// index is a position as it stands in a path that was made here or read from a file.
func index(v any) int {
	if n, ok := v.(float64); ok {
		return int(n)
	}
	return v.(int)
}

// canonical writes a document that has nothing but strings, lists and objects in it.
func canonical(t testing.TB, document any) []byte {
	t.Helper()
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(document); err != nil {
		t.Fatal(err)
	}
	// The library escapes what canonical JSON does not.
	plain := strings.NewReplacer(`\u2028`, "\u2028", `\u2029`, "\u2029").Replace(text.String())
	return []byte(strings.TrimSuffix(plain, "\n"))
}

func parseDocument(t testing.TB, text string) any {
	t.Helper()
	var document any
	if err := json.Unmarshal([]byte(text), &document); err != nil {
		t.Fatal(err)
	}
	return document
}

func (c *bundleCase) text(t testing.TB, v *vectors) []byte {
	document := v.documents[c.Base]
	if document == nil {
		if v.documents == nil {
			v.documents = make(map[string]any)
		}
		document = parseDocument(t, v.Bases[c.Base])
		v.documents[c.Base] = document
	}
	for i := range c.Edits {
		document = c.Edits[i].apply(document)
	}
	return canonical(t, document)
}

func (s *trustSet) trust() (*Trust, error) {
	keys := Keys{Log: s.LogKeys, Witnesses: s.Witnesses, Quorum: s.Quorum}
	if s.RevokedAt != "" {
		at, err := ParseTime(s.RevokedAt)
		if err != nil {
			return nil, err
		}
		keys.RevokedAt = &at
	}
	return NewTrust(keys)
}

// judge fills in what this verifier says of a case.
func (c *bundleCase) judge(t testing.TB, v *vectors, trust map[string]*Trust) {
	text := c.text(t, v)
	verdict, err := trust[c.Trust].Verify(text)
	if err != nil {
		t.Fatalf("%s: %v", c.Name, err)
	}
	c.Verdict, c.Failed, c.Skipped = verdict.Status, []Check{}, []Check{}
	for _, check := range verdict.Checks {
		switch check.Status {
		case Fail:
			c.Failed = append(c.Failed, check.Name)
		case NotChecked:
			c.Skipped = append(c.Skipped, check.Name)
		}
	}
}

// TestVectors promises that this verifier and the file that the others read agree, and that
// every mutant in it fails the check that it should.
func TestVectors(t *testing.T) {
	long := nightly.Count(0, 10_000)
	v := makeVectors(t, long)
	trust := make(map[string]*Trust)
	for name, set := range v.Trust {
		var err error
		if trust[name], err = set.trust(); err != nil {
			t.Fatal(err)
		}
	}
	for name, set := range v.Refused {
		if _, err := set.trust(); err == nil {
			t.Errorf("%s: the trust was accepted", name)
		}
	}
	for _, file := range v.Files {
		if _, err := trust["all"].Verify([]byte(file.Text)); err == nil {
			t.Errorf("%s: the file was taken for a bundle", file.Name)
		}
	}
	mutants := 0
	for i := range v.Cases {
		c := &v.Cases[i]
		c.judge(t, v, trust)
		if c.Edits == nil {
			if c.wanted != nil && !slices.Equal(c.Failed, c.wanted) {
				t.Errorf("%s: %s, failed %v, want %v", c.Name, c.Verdict, c.Failed, c.wanted)
			}
			continue
		}
		mutants++
		wanted := expected(c)
		if wanted == nil {
			if c.Verdict != Verified {
				t.Errorf("%s: %s, failed %v, though nothing that is proven was changed", c.Name, c.Verdict, c.Failed)
			}
			continue
		}
		if c.Verdict == Verified && unproven(c) {
			continue
		}
		if !slices.ContainsFunc(wanted, func(check Check) bool { return slices.Contains(c.Failed, check) }) {
			t.Errorf("%s: %s, failed %v, want one of %v", c.Name, c.Verdict, c.Failed, wanted)
		}
	}
	if mutants < 500 {
		t.Errorf("%d mutants, want 500", mutants)
	}
	text, err := json.MarshalIndent(v, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	text = append(compactLists(text), '\n')
	if *export != "" {
		if err := os.WriteFile(*export, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if long > 0 {
		return
	}
	if *update {
		if err := os.WriteFile(vectorFile, text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	stored, err := os.ReadFile(vectorFile)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(stored), string(text)); diff != "" {
		t.Errorf("the vectors are not those in %s; go test ./internal/bundle -run Vectors -update writes them anew:\n%.2000s", vectorFile, diff)
	}
}

// expected lists checks of which a mutant must fail one; nil where it must be verified.
func expected(c *bundleCase) []Check {
	top, _ := c.Edits[0].Path[0].(string)
	last, _ := c.Edits[0].Path[len(c.Edits[0].Path)-1].(string)
	removed := c.Edits[0].Op == "set" && c.Edits[0].Value == nil
	switch {
	case top == "generated_at":
		return nil
	case last == "payload" || last == "redactions":
		if removed {
			return nil // evidence that is left out is not false
		}
		return []Check{CheckPayloadHashes, CheckEventsDigest}
	case top == "entries":
		return []Check{CheckEventsDigest, CheckPayloadHashes}
	case last == "signature" || last == "key_id" || top == "signing_keys":
		return []Check{CheckApprovalSignatures}
	case top == "approvals":
		return []Check{CheckApprovalRecords, CheckApprovalSignatures}
	case top == "log_proof":
		return []Check{CheckInclusion, CheckCheckpointSignature, CheckWitnesses, CheckReceiptHash}
	case top == "anchors":
		return []Check{CheckAnchors}
	}
	return []Check{CheckReceiptHash}
}

// unproven reports whether a mutant may be verified all the same: without roots nobody
// can tell one token from another, and leaving one out or repeating it says nothing false.
func unproven(c *bundleCase) bool {
	path := c.Edits[0].Path
	last := path[len(path)-1]
	return path[0] == "anchors" && (c.Edits[0].Op == "remove" || c.Edits[0].Op == "insert" || last == "proof" || last == "method")
}

// compactLists puts paths and lists of checks on one line.
func compactLists(text []byte) []byte {
	var out bytes.Buffer
	depth := 0
	for line := range strings.Lines(string(text)) {
		trimmed := strings.TrimSpace(line)
		if depth > 0 {
			out.WriteString(trimmed)
			if strings.HasPrefix(trimmed, "]") {
				depth--
				out.WriteString("\n")
			}
			continue
		}
		for _, name := range []string{`"path": [`, `"failed": [`, `"not_checked": [`} {
			if trimmed == name {
				depth++
			}
		}
		if depth > 0 {
			line = strings.TrimRight(line, "\n")
		}
		out.WriteString(line)
	}
	return out.Bytes()
}
