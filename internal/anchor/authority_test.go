package anchor_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"countersign/internal/anchor"
	"countersign/internal/anchor/anchortest"
)

var ecKeys = []string{"-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256"}

const nonce = 0x8877665544332211 // above the signed range, which some encodings get wrong

func digestOf(text string) [32]byte { return sha256.Sum256([]byte(text)) }

func newAuthority(t *testing.T, config anchor.AuthorityConfig) *anchor.Authority {
	t.Helper()
	authority, err := anchor.NewAuthority(config)
	if err != nil {
		t.Fatal(err)
	}
	return authority
}

// Tokens of authorities built with another library and with OpenSSL verify here, and OpenSSL
// accepts them too.
func TestRealAuthorities(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		start             func(t *testing.T) standing
		name, own, policy string
	}{
		"another library": {
			func(t *testing.T) standing { return startAuthority(t, anchortest.Options{}) },
			anchortest.Name, anchortest.Policy, anchortest.Policy,
		},
		"another library with its chain": {
			func(t *testing.T) standing {
				return startAuthority(t, anchortest.Options{IncludeChain: true, Status: http.StatusCreated})
			},
			anchortest.Name, anchortest.Policy, anchortest.Policy,
		},
		"openssl with ECDSA": {
			func(t *testing.T) standing { return startOpenSSL(t, "30", ecKeys...).standing },
			"Second Authority", "1.2.3.4.1", "1.2.3.4.2",
		},
		"openssl with RSA": {
			func(t *testing.T) standing { return startOpenSSL(t, "30", "-algorithm", "RSA").standing },
			"Second Authority", "1.2.3.4.1", "1.2.3.4.2",
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			real := test.start(t)
			digest := digestOf(name)
			before := time.Now().Add(-2 * time.Second)
			for policy, given := range map[string]string{test.own: "", test.policy: test.policy} {
				authority := newAuthority(t, anchor.AuthorityConfig{URL: real.url, Roots: real.roots, Policy: given})
				token, err := authority.Stamp(t.Context(), digest, nonce)
				if err != nil {
					t.Fatal(err)
				}
				stamped, err := authority.Verify(token, digest)
				if err != nil {
					t.Fatal(err)
				}
				if stamped.Authority != test.name || stamped.Policy != policy || stamped.Serial == "" {
					t.Errorf("got %+v, want the authority %q and policy %s", stamped, test.name, policy)
				}
				if stamped.Time.Before(before) || stamped.Time.After(time.Now().Add(2*time.Second)) {
					t.Errorf("the token's time is %v, not about now", stamped.Time)
				}
				checkMisuse(t, token, digest, real.roots)
				checkWithOpenSSL(t, token, digest, real.roots)
			}
		})
	}
}

// checkMisuse verifies that a valid token is refused for anything but its own digest.
func checkMisuse(t *testing.T, token []byte, digest [32]byte, roots []byte) {
	t.Helper()
	trust := parseTrust(t, roots)
	stranger := newIdentity(t, certificate{name: "Stranger", authority: true}, nil)
	tests := map[string]struct {
		token  []byte
		digest [32]byte
		trust  *anchor.Trust
		nonce  uint64
		want   anchor.Reason
	}{
		"good":          {token, digest, trust, nonce, ""},
		"another nonce": {token, digest, trust, nonce + 1, anchor.WrongNonce},
		"another hash":  {token, digestOf("another"), trust, 0, anchor.WrongImprint},
		"another root":  {token, digest, parseTrust(t, stranger.pem()), 0, anchor.UntrustedRoot},
		"empty":         {nil, digest, trust, 0, anchor.Malformed},
		"cut off":       {token[:len(token)-1], digest, trust, 0, anchor.Malformed},
		"halved":        {token[:len(token)/2], digest, trust, 0, anchor.Malformed},
		"longer":        {append(bytes.Clone(token), 0), digest, trust, 0, anchor.Malformed},
		"far too long":  {make([]byte, 1<<20), digest, trust, 0, anchor.Malformed},
	}
	for name, test := range tests {
		_, err := anchor.VerifyToken(test.token, test.digest, test.trust, test.nonce)
		if got := anchor.ReasonOf(err); got != test.want {
			t.Errorf("%s: got the reason %q (%v), want %q", name, got, err, test.want)
		}
	}
}

// checkWithOpenSSL verifies the token with OpenSSL, from the digest alone like a third party.
func checkWithOpenSSL(t *testing.T, token []byte, digest [32]byte, roots []byte) {
	t.Helper()
	folder := t.TempDir()
	for name, data := range map[string][]byte{"token": token, "roots": roots} {
		if err := os.WriteFile(filepath.Join(folder, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	output, err := runOpenSSL(t.Context(), folder, "ts", "-verify", "-digest", hex.EncodeToString(digest[:]),
		"-in", "token", "-token_in", "-CAfile", "roots")
	if err != nil {
		t.Errorf("openssl disagrees: %v\n%s", err, output)
	}
}

// A token whose certificate had expired when it was made is refused.
func TestOpenSSLWithAnExpiredCertificate(t *testing.T) {
	t.Parallel()
	real := startOpenSSL(t, "-1", ecKeys...)
	_, err := newAuthority(t, anchor.AuthorityConfig{URL: real.url, Roots: real.roots}).Stamp(t.Context(), digestOf("late"), nonce)
	if got := anchor.ReasonOf(err); got != anchor.ExpiredAtTime {
		t.Fatalf("got the reason %q (%v), want %q", got, err, anchor.ExpiredAtTime)
	}
}
