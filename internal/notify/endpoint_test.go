package notify

import (
	"encoding/base64"
	"strings"
	"testing"

	"countersign/internal/ledger"
)

// A webhook URL must be HTTPS to a public host, without credentials or a fragment.
// Private hosts and HTTP need the operator's permission.
func TestCheckURL(t *testing.T) {
	t.Parallel()
	const accepted = ""
	for _, c := range []struct {
		url             string
		public, private string // expected errors without and with private addresses allowed
	}{
		{"https://example.com/hooks", accepted, accepted},
		{"https://example.com:8443/hooks?team=a", accepted, accepted},
		{"https://8.8.8.8/", accepted, accepted},
		{"https://[2606:4700::1]/", accepted, accepted},
		{"http://example.com/hooks", "https://", accepted},
		{"http://127.0.0.1:9000/", "https://", accepted},
		{"https://127.0.0.1/", "public address", accepted},
		{"https://[::1]/", "public address", accepted},
		{"https://[::ffff:10.0.0.1]/", "public address", accepted},
		{"https://[fe80::1%25eth0]/", "public address", accepted},
		{"https://localhost/", "public address", accepted},
		{"https://LOCALHOST./", "public address", accepted},
		{"https://db.localhost/", "public address", accepted},
		{"ftp://example.com/", "https://", "https://"},
		{"file:///etc/passwd", "https://", "https://"},
		{"example.com/hooks", "https://", "https://"},
		{"", "https://", "https://"},
		{"https:example.com", "host", "host"},
		{"https:///hooks", "host", "host"},
		{"https://ada:word@example.com/", "user name", "user name"},
		{"https://@example.com/", "user name", "user name"},
		{"https://example.com/#top", "fragment", "fragment"},
		{"https://example.com/#", "fragment", "fragment"},
		{"https://example.com:0/", "port", "port"},
		{"https://example.com:65536/", "port", "port"},
		{"https://example.com:x/", "must be a URL", "must be a URL"},
		{"https://exa mple.com/", "must be a URL", "must be a URL"},
		{"https://example.com/\r\nX: y", "must be a URL", "must be a URL"},
		{"https://example.com/" + strings.Repeat("x", maxURL), "at most 2000", "at most 2000"},
	} {
		for _, allowPrivate := range []bool{false, true} {
			want := c.public
			if allowPrivate {
				want = c.private
			}
			err := CheckURL(c.url, allowPrivate)
			if (err == nil) != (want == accepted) || err != nil && !strings.Contains(err.Error(), want) {
				t.Errorf("CheckURL(%.60q, %v) = %v, want %q", c.url, allowPrivate, err, want)
			}
		}
	}
}

// A webhook secret is whsec_ and 32 bytes in base64.
func TestNewSecret(t *testing.T) {
	t.Parallel()
	secret := testSecret(7)
	encoded, found := strings.CutPrefix(secret.Reveal(), "whsec_")
	key, err := base64.StdEncoding.DecodeString(encoded)
	if !found || err != nil || len(key) != 32 || key[0] != 7 {
		t.Errorf("found %v, %d bytes, %v", found, len(key), err)
	}
}

// testSecret returns a secret of 32 identical bytes.
func testSecret(b byte) ledger.Secret {
	var random [32]byte
	for i := range random {
		random[i] = b
	}
	return NewSecret(random)
}
