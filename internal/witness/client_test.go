package witness

import (
	"crypto/ed25519"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"
)

// newClient speaks to a witness over a real connection.
func newClient(t testing.TB, w *Witness) *Client {
	t.Helper()
	server := httptest.NewServer(w.Handler())
	t.Cleanup(server.Close)
	target, err := ParseTarget(w.VKey() + "=" + server.URL + "/")
	if err != nil {
		t.Fatal(err)
	}
	return NewClient(target)
}

// A client submits, learns which size the witness has, proves from there, and gets a
// cosignature that makes the checkpoint verify under the witness's key.
func TestClientSubmits(t *testing.T) {
	t.Parallel()
	l := newTestLog(t, testOrigin).grow(20, "")
	w := openFolder(t, newFolder(t, l))
	c := newClient(t, w)
	for _, size := range []int64{5, 20} {
		checkpoint := []byte(l.checkpoint(size))
		got, err := c.Submit(t.Context(), checkpoint, 0, nil)
		var conflict *ConflictError
		if errors.As(err, &conflict) {
			got, err = c.Submit(t.Context(), checkpoint, conflict.Size, l.proof(conflict.Size, size))
		}
		if err != nil {
			t.Fatal(err)
		}
		verifyLine(t, w.VKey(), l.text(size), got.Line)
		opened, err := note.Open(append(checkpoint, got.Line...), note.VerifierList(c.Verifier, mustVerifier(t, l.vkey)))
		if err != nil || len(opened.Sigs) != 2 || got.Time.IsZero() {
			t.Errorf("size %d: %v %+v", size, err, got)
		}
	}
	for name, test := range map[string]struct {
		checkpoint string
		old        int64
		proof      tlog.TreeProof
		want       any
	}{
		"an old size that the witness has left": {l.checkpoint(20), 5, l.proof(5, 20), new(*ConflictError)},
		"another log":                           {newTestLog(t, "example.com/b").grow(3, "").checkpoint(3), 0, nil, new(*StatusError)},
		"another history":                       {l.fork().reset().grow(20, "fork").checkpoint(20), 20, nil, ErrInconsistent},
		"a wrong proof":                         {l.fork().grow(21, "").checkpoint(21), 20, l.proof(3, 20), ErrInconsistent},
		"no checkpoint":                         {"hello\n", 0, nil, errMalformed},
		"a negative size":                       {l.checkpoint(20), -1, nil, nil},
		"a long proof":                          {l.checkpoint(20), 1, make(tlog.TreeProof, 64), nil},
	} {
		got, err := c.Submit(t.Context(), []byte(test.checkpoint), test.old, test.proof)
		matched := err != nil && got == Cosignature{}
		switch want := test.want.(type) {
		case error:
			matched = matched && errors.Is(err, want)
		case **ConflictError:
			matched = matched && errors.As(err, want) && (*want).Size == 20
		case **StatusError:
			matched = matched && errors.As(err, want) && (*want).Status == http.StatusNotFound
		}
		if !matched {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
}

// A client writes a cosignature in its one spelling, whichever the witness has chosen: verifiers
// refuse a checkpoint with a line in another.
func TestClientRespellsCosignatures(t *testing.T) {
	t.Parallel()
	l := newTestLog(t, testOrigin).grow(8, "")
	w := openFolder(t, newFolder(t, l))
	right := cosigned(t, w, l, 0, 8)
	const digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
	at := strings.Index(right, "==\n") - 1 // four of the six bits of this digit mean nothing
	odd := right[:at] + string(digits[strings.IndexByte(digits, right[at])+1]) + right[at+1:]
	server := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) { _, _ = rw.Write([]byte(odd)) }))
	t.Cleanup(server.Close)
	c := &Client{URL: server.URL, Verifier: w.own}
	got, err := c.Submit(t.Context(), []byte(l.checkpoint(8)), 0, nil)
	if err != nil || got.Line != right {
		t.Errorf("the line is %q, %v, want %q", got.Line, err, right)
	}
}

// A client takes a cosignature only with a time that verifiers accept: after 1970 and before the year
// 10000.
func TestClientChecksTheTimeOfACosignature(t *testing.T) {
	t.Parallel()
	l := newTestLog(t, testOrigin).grow(8, "")
	const name = "example.com/witness"
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	key := append([]byte{typeCosignature}, public...)
	id := keyID(name, key)
	verifier, err := NewVerifier(fmt.Sprintf("%s+%08x+%s", name, id, base64.StdEncoding.EncodeToString(key)))
	if err != nil {
		t.Fatal(err)
	}
	for at, valid := range map[uint64]bool{
		0: false, 1: true, 253402300799: true, 253402300800: false, math.MaxInt64: false, math.MaxUint64: false,
	} {
		signature := binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint32(nil, id), at)
		signature = append(signature, ed25519.Sign(private, fmt.Appendf(nil, "cosignature/v1\ntime %d\n%s", at, l.text(8)))...)
		line := signatureLine(note.Signature{Name: name, Base64: base64.StdEncoding.EncodeToString(signature)})
		server := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) { _, _ = rw.Write([]byte(line)) }))
		got, err := (&Client{URL: server.URL, Verifier: verifier}).Submit(t.Context(), []byte(l.checkpoint(8)), 0, nil)
		server.Close()
		if (err == nil) != valid || valid && uint64(got.Time.Unix()) != at {
			t.Errorf("time %d: %v, %v", at, got.Time, err)
		}
	}
}

func (l *testLog) reset() *testLog {
	l.size, l.hashes = 0, nil
	return l
}

// Whatever a witness answers, a client takes nothing for a cosignature but a valid one
// of its key on this checkpoint.
func TestClientBelievesNothingElse(t *testing.T) {
	t.Parallel()
	l := newTestLog(t, testOrigin).grow(9, "")
	w := openFolder(t, newFolder(t, l))
	line := cosigned(t, w, l, 0, 8)
	other := cosigned(t, openFolder(t, newFolder(t, l)), l, 0, 9)
	right := cosigned(t, w, l, 8, 9)
	checkpoint := l.checkpoint(9)
	answers := func(status int, kind, body string) http.HandlerFunc {
		return func(rw http.ResponseWriter, _ *http.Request) {
			rw.Header().Set("Content-Type", kind)
			rw.WriteHeader(status)
			_, _ = rw.Write([]byte(body))
		}
	}
	for name, test := range map[string]struct {
		answer  http.HandlerFunc
		believe bool
		says    string
	}{
		"valid":                 {answers(200, "", right), true, ""},
		"valid among others":    {answers(200, "", other+right+"— example.com/x AAAAAAAA\n"), true, ""},
		"empty":                 {answers(200, "", ""), false, "no valid cosignature"},
		"another witness's":     {answers(200, "", other), false, "no valid cosignature"},
		"of another checkpoint": {answers(200, "", line), false, "no valid cosignature"},
		"without its newline":   {answers(200, "", strings.TrimSuffix(right, "\n")), false, "no valid cosignature"},
		"another note":          {answers(200, "", "\n"+l.text(9)+"\n"+right), false, ""},
		"too long":              {answers(200, "", right+strings.Repeat("— x AAAAAAAA\n", maxAnswer/10)), false, "longer than"},
		"a redirect": {func(rw http.ResponseWriter, r *http.Request) {
			http.Redirect(rw, r, "/elsewhere", http.StatusTemporaryRedirect)
		}, false, "307"},
		"not cosigned":              {answers(202, "", right), false, "202"},
		"a size":                    {answers(409, "text/x.tlog.size; charset=utf-8", "7\n"), false, "has cosigned size 7"},
		"a size with a zero":        {answers(409, "text/x.tlog.size", "07\n"), false, "cannot be read"},
		"a negative size":           {answers(409, "text/x.tlog.size", "-7\n"), false, "cannot be read"},
		"a size without a newline":  {answers(409, "text/x.tlog.size", "7"), false, "cannot be read"},
		"a size beyond all trees":   {answers(409, "text/x.tlog.size", "9223372036854775807\n"), false, "cannot be read"},
		"another conflict":          {answers(409, "text/plain", "7\n"), false, ErrInconsistent.Error()},
		"a text with control bytes": {answers(400, "text/plain", "\x1b[31mred\n"), false, `\x1b[31mred`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := httptest.NewServer(test.answer)
			defer server.Close()
			c := &Client{URL: server.URL, Verifier: w.own, HTTP: server.Client()}
			got, err := c.Submit(t.Context(), []byte(checkpoint), 0, nil)
			if test.believe && (err != nil || got.Line != right) {
				t.Errorf("%q, %v", got.Line, err)
			}
			if !test.believe && (err == nil || got.Line != "" || !strings.Contains(err.Error(), test.says)) {
				t.Errorf("%q, %v, want %q", got.Line, err, test.says)
			}
		})
	}
}

// A witness that switches protocols does not hold up the client: net/http applies no timeout to
// such a connection any more.
//
//countersign:race
func TestClientEndsASwitchOfProtocols(t *testing.T) {
	t.Parallel()
	l := newTestLog(t, testOrigin).grow(3, "")
	w := openFolder(t, newFolder(t, l))
	left := make(chan error, 1)
	server := httptest.NewServer(http.HandlerFunc(func(writer http.ResponseWriter, request *http.Request) {
		_, _ = io.Copy(io.Discard, request.Body)
		conn, _, err := http.NewResponseController(writer).Hijack()
		if err != nil {
			left <- err
			return
		}
		defer conn.Close()
		_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n")
		_ = conn.SetReadDeadline(time.Now().Add(3 * clientTime))
		_, err = conn.Read(make([]byte, 1))
		left <- err
	}))
	t.Cleanup(server.Close)
	target, err := ParseTarget(w.VKey() + "=" + server.URL + "/")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := NewClient(target).Submit(t.Context(), []byte(l.checkpoint(3)), 0, nil); err == nil {
		t.Error("the submission succeeded")
	}
	if err := <-left; !errors.Is(err, io.EOF) {
		t.Errorf("the connection ended with %v, want the client to close it", err)
	}
}

// The vkey and the URL of a flag are told apart wherever there are equals signs, and
// what is neither is refused with the form that is wanted.
func TestParseTarget(t *testing.T) {
	t.Parallel()
	keyed := func(name string) string {
		skey, err := newSigningKey(name)
		if err != nil {
			t.Fatal(err)
		}
		k, err := newKey(skey)
		if err != nil {
			t.Fatal(err)
		}
		return k.vkey
	}
	vkey := keyed("example.com/witness")
	for _, name := range []string{"w", "a=b", "x=http://y", "example.com/witness", "wítness"} {
		vkey := keyed(name)
		for _, address := range []string{"https://witness.example.com", "http://127.0.0.1:8081/a=http://b/c"} {
			got, err := ParseTarget(vkey + "=" + address)
			if err != nil || got.VKey != vkey || got.URL != address || got.Name != name || got.Verifier.Name() != name {
				t.Errorf("%s=%s: %+v, %v", vkey, address, got, err)
			}
		}
	}
	logKey := newTestLog(t, testOrigin).vkey
	head, _, _ := strings.Cut(vkey, "+")
	for text, says := range map[string]string{
		"":                               "has the form <vkey>=<url>",
		vkey:                             "has the form <vkey>=<url>",
		vkey + "=":                       "has the form <vkey>=<url>",
		vkey + "=ftp://host":             "has the form <vkey>=<url>",
		vkey + "=http://":                "an address has the form",
		vkey + "=httpx://host":           "an address has the form",
		vkey + "=https://user:word@host": "an address has the form",
		vkey + "=https://host?q":         "an address has the form",
		vkey + "=https://host#f":         "an address has the form",
		logKey + "=https://host":         "signature type 0x01",
		head + "x" + vkey[len(head):] + "=https://host": "does not belong to its name",
		vkey[:len(vkey)-4] + "=https://host":            "not a verifier key",
		"a b" + vkey[len(head):] + "=https://host":      "not a verifier key",
		"https://host=" + vkey:                          "has the form <vkey>=<url>",
	} {
		if got, err := ParseTarget(text); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %+v, %v, want %q", text, got, err, says)
		}
	}
}

// The example key of the signed-note text is read, and its example note verifies.
func TestSpecificationExample(t *testing.T) {
	t.Parallel()
	const (
		vkey   = "example.com/foo+530d903a+AekyeRrm56hApGFkyQR4ZCbV54Id2LKaANYcrnKv3U2k"
		signed = "This is an example message.\n\n— example.com/foo Uw2QOkn8srV1yJGh2VYRlL1Tnagv1YEq6TfXppzi2ONncAlTgK7Ztg1ERYNZXsYjOBH3mFXmRKuwHjG1Yu72IneyaQM=\n"
	)
	verifier, err := newLogVerifier(vkey)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := note.Open([]byte(signed), note.VerifierList(verifier)); err != nil {
		t.Error(err)
	}
	for _, wrong := range []string{strings.ToUpper(vkey[:23]) + vkey[23:], vkey + "=", vkey[:len(vkey)-1] + "l", vkey + "\n"} {
		if _, err := newLogVerifier(wrong); err == nil {
			t.Errorf("%q was taken for a key", wrong)
		}
	}
	// The example request of the tlog-witness text has the form that is read.
	const request = "old 20852014\nPlRNCrwHpqhGrupue0L7gxbjbMiKA9temvuZZDDpkaw=\njrJZDmY8Y7SyJE0MWLpLozkIVMSMZcD5kvuKxPC3swk=\n" +
		"5+pKlUdi2LeF/BcMHBn+Ku6yhPGNCswZZD1X/6QgPd8=\n/6WVhPs2CwSsb5rYBH5cjHV/wSmA79abXAwhXw3Kj/0=\n\n" +
		"example.com/behind-the-sofa\n20852163\nCsUYapGGPo4dkMgIAUqom/Xajj7h2fB2MPA3j2jxq2I=\n\n" +
		"— example.com/behind-the-sofa Az3grlgtzPICa5OS8npVmf1Myq/5IZniMp+ZJurmRDeOoRDe4URYN7u5/Zhcyv2q1gGzGku9nTo+zyWE+xeMcTOAYQ8=\n" +
		"— example.com/behind-the-sofa opLqBQsREYCgu6xQkYQwJr9fo45a62DN9EdmHXnZdXNqlcVGlCum2Wks+49/V6267UEjw6QUXTS5Rovnzv++qbSzm9Q=\n"
	s, err := parseRequest([]byte(request))
	if err != nil || s.old != 20852014 || len(s.proof) != 4 {
		t.Fatalf("%+v, %v", s, err)
	}
	parsed, err := parseCheckpoint(s.checkpoint)
	if err != nil || parsed.Origin != "example.com/behind-the-sofa" || parsed.Size != 20852163 {
		t.Errorf("%+v, %v", parsed, err)
	}
	if again := string(appendRequest(nil, s)); again != request {
		t.Errorf("written again: %s", again)
	}
}
