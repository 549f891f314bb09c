package witness

import (
	"bytes"
	"testing"
)

// Whatever is sent, a request is refused as malformed or has one form: written again
// it is the same, within the bounds of the protocol.
func FuzzRequest(f *testing.F) {
	l := newTestLog(f, testOrigin).grow(9, "")
	f.Add([]byte(l.request(0, 9)))
	f.Add([]byte(l.request(4, 9)))
	f.Add([]byte(requestBody(3, nil, l.sign(l.text(3)+"extension\n"))))
	f.Add([]byte("old 0\n\n\n\n"))
	f.Fuzz(func(t *testing.T, body []byte) {
		s, err := parseRequest(body)
		if err != nil {
			return
		}
		if again := appendRequest(nil, s); !bytes.Equal(again, body) || len(s.proof) > maxProof || s.old < 0 {
			t.Fatalf("%q was read, and is written %q", body, again)
		}
		signed, err := parseCheckpoint(s.checkpoint)
		if err == nil && (signed.Origin == "" || signed.Size < 0 || signed.Size > maxSize) {
			t.Fatalf("%q was read as %+v", s.checkpoint, signed)
		}
	})
}
