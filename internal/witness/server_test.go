package witness

import (
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"
)

// verifyLine checks a cosignature with the standard library alone, after the text of
// tlog-cosignature.
func verifyLine(t testing.TB, vkey, text, line string) {
	t.Helper()
	name, rest, _ := strings.Cut(vkey, "+")
	id, key64, _ := strings.Cut(rest, "+")
	key, err := base64.StdEncoding.DecodeString(key64)
	if err != nil || len(key) != 33 || key[0] != 0x04 {
		t.Fatalf("the verifier key is %q", vkey)
	}
	sum := sha256.Sum256(append([]byte(name+"\n"), key...))
	prefix, encoded, _ := strings.Cut(strings.TrimSuffix(line, "\n"), name+" ")
	signature, err := base64.StdEncoding.DecodeString(encoded)
	if prefix != "— " || err != nil || len(signature) != 4+8+64 || !strings.HasSuffix(line, "\n") || strings.Count(line, "\n") != 1 {
		t.Fatalf("not one signature line: %q", line)
	}
	if got := hex.EncodeToString(signature[:4]); got != id || got != hex.EncodeToString(sum[:4]) {
		t.Errorf("key id %s, want %s", got, id)
	}
	at := binary.BigEndian.Uint64(signature[4:])
	if age := time.Since(time.Unix(int64(at), 0)); age < -time.Second || age > time.Hour {
		t.Errorf("the cosignature is from %s ago", age)
	}
	if !ed25519.Verify(key[1:], fmt.Appendf(nil, "cosignature/v1\ntime %d\n%s", at, text), signature[12:]) {
		t.Error("the cosignature does not verify")
	}
}

// A witness cosigns a log as it grows, the same checkpoint again, and an empty one,
// and serves the last to monitors with both signatures.
func TestAddCheckpointCosigns(t *testing.T) {
	t.Parallel()
	l := newTestLog(t, testOrigin).grow(300, "")
	w := openFolder(t, newFolder(t, l))
	hash := sha256.Sum256([]byte(testOrigin))
	monitored := "/" + hex.EncodeToString(hash[:]) + "/checkpoint"
	if got := get(w, monitored); got.status != http.StatusNotFound {
		t.Errorf("before the first cosignature: status %d", got.status)
	}
	sizes := []int64{0, 0, 1, 1, 2, 7, 8, 255, 256, 257, 300, 300}
	last := int64(0)
	for _, size := range sizes {
		cosigned(t, w, l, last, size)
		last = size
	}
	got := get(w, monitored)
	opened, err := note.Open([]byte(got.body), note.VerifierList(w.own, mustVerifier(t, l.vkey)))
	if err != nil || opened.Text != l.text(300) || len(opened.Sigs) != 2 {
		t.Errorf("the monitored checkpoint is %q: %v", got.body, err)
	}
}

func mustVerifier(t testing.TB, vkey string) note.Verifier {
	t.Helper()
	v, err := note.NewVerifier(vkey)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// Each fault has the status that the protocol gives it, and none moves the witness.
func TestAddCheckpointRefuses(t *testing.T) {
	t.Parallel()
	l := newTestLog(t, testOrigin).grow(20, "")
	stranger := newTestLog(t, "example.com/other").grow(20, "")
	impostor := newTestLog(t, testOrigin).grow(20, "")
	forked := l.fork()
	forked.size, forked.hashes = 0, nil
	forked.grow(20, "forked")
	valid := l.checkpoint(12)
	text, signature, _ := strings.Cut(valid, "\n\n")
	root := strings.Split(text, "\n")[2]
	resigned := func(lines ...string) string { return l.sign(strings.Join(lines, "\n") + "\n") }
	broken := strings.Replace(valid, "\n"+root, "\n"+strings.Repeat("A", 43)+"=", 1)
	proof := l.proof(10, 12)
	line := base64.StdEncoding.EncodeToString(make([]byte, 32)) + "\n"

	for name, test := range map[string]struct {
		body   string
		status int
	}{
		"empty":                         {"", 400},
		"no old line":                   {"\n" + valid, 400},
		"no empty line":                 {"old 10\n", 400},
		"another word":                  {strings.Replace(l.request(10, 12), "old", "Old", 1), 400},
		"two spaces":                    {strings.Replace(l.request(10, 12), "old ", "old  ", 1), 400},
		"negative":                      {requestBody(-1, nil, valid), 400},
		"plus":                          {strings.Replace(l.request(10, 12), "old 10", "old +10", 1), 400},
		"leading zero":                  {strings.Replace(l.request(10, 12), "old 10", "old 010", 1), 400},
		"zero twice":                    {strings.Replace(l.request(0, 12), "old 0", "old 00", 1), 400},
		"too large a number":            {strings.Replace(l.request(10, 12), "old 10", "old 18446744073709551616", 1), 400},
		"carriage returns":              {strings.ReplaceAll(l.request(10, 12), "\n", "\r\n"), 400},
		"a hash of 31 bytes":            {"old 10\n" + base64.StdEncoding.EncodeToString(make([]byte, 31)) + "\n\n" + valid, 400},
		"a hash of 33 bytes":            {"old 10\n" + base64.StdEncoding.EncodeToString(make([]byte, 33)) + "\n\n" + valid, 400},
		"a hash with stray bits":        {"old 10\n" + strings.Repeat("A", 42) + "B=\n\n" + valid, 400},
		"a hash in base64url":           {"old 10\n" + strings.Repeat("_", 42) + "8=\n\n" + valid, 400},
		"64 lines of proof":             {"old 10\n" + strings.Repeat(line, 64) + "\n" + valid, 400},
		"63 lines of proof":             {"old 10\n" + strings.Repeat(line, 63) + "\n" + valid, 422},
		"no signature":                  {"old 10\n\n" + text + "\n\n", 400},
		"no note":                       {"old 10\n\n" + text + "\n", 400},
		"cut off":                       {strings.TrimSuffix(l.request(10, 12), "\n"), 400},
		"two lines of text":             {requestBody(10, proof, resigned(testOrigin, "12")), 400},
		"empty origin":                  {requestBody(10, proof, resigned("", "12", root)), 400},
		"size with a leading zero":      {requestBody(10, proof, resigned(testOrigin, "012", root)), 400},
		"size with a sign":              {requestBody(10, proof, resigned(testOrigin, "+12", root)), 400},
		"size above 2^62":               {requestBody(10, proof, resigned(testOrigin, "4611686018427387905", root)), 400},
		"size above 2^64":               {requestBody(10, proof, resigned(testOrigin, "18446744073709551616", root)), 400},
		"root of 31 bytes":              {requestBody(10, proof, resigned(testOrigin, "12", root[:40]+"AA==")), 400},
		"root with stray bits":          {requestBody(10, proof, resigned(testOrigin, "12", strings.Repeat("A", 42)+"B=")), 400},
		"empty extension line":          {requestBody(10, proof, resigned(testOrigin, "12", root, "", "x")), 400},
		"control character":             {requestBody(10, proof, strings.Replace(valid, testOrigin, "exa\tmple.com/log", 1)), 400},
		"101 signatures":                {requestBody(10, proof, valid+strings.Repeat(signature, 100)), 400},
		"unknown origin":                {stranger.request(10, 12), 404},
		"unknown origin, trusted key":   {requestBody(10, proof, resigned("example.com/other", "12", root)), 404},
		"unknown key of the right name": {impostor.request(10, 12), 403},
		"another text under the key":    {requestBody(10, proof, broken), 403},
		"old size above the new one":    {requestBody(13, nil, valid), 400},
		"old size above, unsigned":      {requestBody(13, nil, impostor.checkpoint(12)), 403},
		"old size too small":            {l.request(9, 12), 409},
		"old size zero":                 {l.request(0, 12), 409},
		"old size too large":            {l.request(11, 12), 409},
		"an older checkpoint":           {l.request(8, 9), 409},
		"another root at the same size": {requestBody(10, nil, forked.checkpoint(10)), 409},
		"no proof":                      {requestBody(10, nil, valid), 422},
		"short proof":                   {requestBody(10, proof[1:], valid), 422},
		"long proof":                    {requestBody(10, append(proof[:len(proof):len(proof)], tlog.Hash{}), valid), 422},
		"a proof of the same size":      {requestBody(10, proof, l.checkpoint(10)), 422},
		"another history":               {forked.request(10, 12), 422},
		"at the largest size":           {requestBody(10, proof, resigned(testOrigin, "4611686018427387904", root)), 422},
		"an empty tree":                 {requestBody(0, nil, l.checkpoint(0)), 409},
		"too long":                      {l.request(10, 12) + strings.Repeat("— x AAAAAAAA\n", maxRequest/10), 413},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := openFolder(t, newFolder(t, l))
			cosigned(t, w, l, 0, 10)
			got := post(w, test.body)
			if got.status != test.status {
				t.Errorf("status %d (%s), want %d", got.status, strings.TrimSpace(got.body), test.status)
			}
			if strings.Contains(got.body, "— ") {
				t.Errorf("a refusal bears a signature: %q", got.body)
			}
			if sized := got.kind == "text/x.tlog.size"; sized != (test.status == 409 && name != "another root at the same size") || sized && got.body != "10\n" {
				t.Errorf("answered %s %q", got.kind, got.body)
			}
			cosigned(t, w, l, 10, 11) // nothing has moved
		})
	}
}

// Before anything was cosigned the old size is zero and the proof empty, and an empty
// tree has the one root that it can have.
func TestFirstCheckpoint(t *testing.T) {
	t.Parallel()
	l := newTestLog(t, testOrigin).grow(5, "")
	for name, test := range map[string]struct {
		body   string
		status int
	}{
		"any size":             {l.request(0, 5), 200},
		"an empty tree":        {l.request(0, 0), 200},
		"a proof":              {requestBody(0, l.proof(2, 5), l.checkpoint(5)), 422},
		"an old size":          {l.request(2, 5), 409},
		"another empty tree":   {requestBody(0, nil, l.sign(testOrigin+"\n0\n"+strings.Repeat("A", 43)+"=\n")), 422},
		"an empty tree, proof": {requestBody(0, l.proof(2, 5), l.checkpoint(0)), 422},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := post(openFolder(t, newFolder(t, l)), test.body); got.status != test.status {
				t.Errorf("status %d (%s), want %d", got.status, got.body, test.status)
			}
		})
	}
}

// Whoever passes a log's checkpoint on can spell its signature in another way. The witness serves it
// in its one spelling: verifiers refuse a whole checkpoint for another.
func TestServedSignaturesHaveOneSpelling(t *testing.T) {
	t.Parallel()
	l := newTestLog(t, testOrigin).grow(1, "")
	w := openFolder(t, newFolder(t, l))
	signed := l.checkpoint(1)
	last := len(signed) - len("A=\n")
	// The lowest two bits of the last letter mean nothing.
	const letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
	respelled := signed[:last] + string(letters[strings.IndexByte(letters, signed[last])|1]) + signed[last+1:]
	if got := post(w, requestBody(0, nil, respelled)); got.status != http.StatusOK {
		t.Fatalf("status %d: %s", got.status, got.body)
	}
	if got := get(w, "/"+originHash(testOrigin)+"/checkpoint"); !strings.HasPrefix(got.body, signed) {
		t.Errorf("the served checkpoint is %q, want the signature of %q", got.body, signed)
	}
}

// Signatures of unknown keys are ignored, 16 large ones are room enough, extension
// lines are cosigned, and a log may sign with any of its keys while it rotates them.
func TestCheckpointsOfManyKinds(t *testing.T) {
	t.Parallel()
	l := newTestLog(t, testOrigin).grow(9, "")
	next := newTestLog(t, testOrigin)
	folder := newFolder(t, l)
	if _, err := Add(folder, next.vkey, ""); err != nil {
		t.Fatal(err)
	}
	w := openFolder(t, folder)
	var others []note.Signer
	for i := range 15 {
		others = append(others, largeSigner(i))
	}
	next.hashes, next.size = l.hashes, l.size
	extended := l.text(3) + "anything\nat all\n"
	for _, step := range []struct {
		from int64
		to   int64
		note string
		text string
	}{
		{0, 1, l.sign(l.text(1), others...), l.text(1)},
		{1, 2, l.sign(l.text(2), next.signer), l.text(2)},
		{2, 3, next.sign(extended), extended},
		{3, 4, strings.Replace(l.checkpoint(4), "\n\n", "\n\n— example.com/log AAAAAAAA\n", 1), l.text(4)},
		{4, 5, l.checkpoint(5) + "— example.com/witness " + base64.StdEncoding.EncodeToString(make([]byte, 76)) + "\n", l.text(5)},
	} {
		got := post(w, requestBody(step.from, l.proof(step.from, step.to), step.note))
		if got.status != http.StatusOK {
			t.Fatalf("to %d: status %d: %s", step.to, got.status, got.body)
		}
		verifyLine(t, w.VKey(), step.text, got.body)
	}
	// One good signature does not excuse a bad one of another trusted key.
	bad := strings.Replace(next.checkpoint(6), "\n\n", "\n\n"+forgedLine(t, l)+"\n", 1)
	if got := post(w, requestBody(5, l.proof(5, 6), bad)); got.status != http.StatusForbidden {
		t.Errorf("a forged signature beside a valid one: status %d", got.status)
	}
}

// forgedLine has the name and the id of the log's key, and a signature of nothing.
func forgedLine(t testing.TB, l *testLog) string {
	t.Helper()
	forged := binary.BigEndian.AppendUint32(nil, l.signer.KeyHash())
	return "— " + l.origin + " " + base64.StdEncoding.EncodeToString(append(forged, make([]byte, 64)...))
}

// largeSigner signs as a post-quantum algorithm would, in size.
type largeSigner int

func (s largeSigner) Name() string              { return fmt.Sprintf("example.com/large-%d", int(s)) }
func (largeSigner) KeyHash() uint32             { return 7 }
func (largeSigner) Sign([]byte) ([]byte, error) { return make([]byte, 4900), nil }

// The protocol is spoken with POST alone, and the other routes answer as the
// service's do.
func TestRoutes(t *testing.T) {
	t.Parallel()
	l := newTestLog(t, testOrigin).grow(2, "")
	w := openFolder(t, newFolder(t, l))
	for path, status := range map[string]int{
		"/add-checkpoint": 405, "/healthz": 200, "/readyz": 200, "/": 404, "/sign-subtree": 404,
		"/" + strings.Repeat("0", 64) + "/checkpoint": 404,
	} {
		if got := get(w, path); got.status != status {
			t.Errorf("GET %s: status %d, want %d", path, got.status, status)
		}
	}
	if got := get(w, "/readyz"); !strings.Contains(got.body, `"status":"ready"`) {
		t.Errorf("ready: %s", got.body)
	}
	cosigned(t, w, l, 0, 1)
	lie := l.fork()
	lie.size, lie.hashes = 0, nil
	post(w, requestBody(1, nil, lie.grow(1, "lie").checkpoint(1)))
	if got := get(w, "/readyz"); got.status != http.StatusOK || !strings.Contains(got.body, `"status":"degraded","reasons":[{"name":"fork","count":1}]`) {
		t.Errorf("after a fork: %d %s", got.status, got.body)
	}
}
