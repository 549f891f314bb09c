package notify

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"time"

	"countersign/internal/ledger"
)

// Endpoint is the destination of a webhook.
type Endpoint struct {
	URL string
	// Secrets has the secret of the endpoint and, while it is being replaced, also the old one.
	// Each signs, and the receiver needs to know one of them.
	Secrets []ledger.Secret
}

const (
	maxURL     = 2000
	maxSecrets = 4

	secretPrefix = "whsec_"

	// Limits of the decoded secret, from Standard Webhooks.
	minKey = 24
	maxKey = 64
)

// NewSecret returns a signing secret in the form that Standard Webhooks verifiers accept.
func NewSecret(random [32]byte) ledger.Secret {
	return ledger.NewSecret(secretPrefix + base64.StdEncoding.EncodeToString(random[:]))
}

// CheckURL says what is wrong with the URL of a webhook, in words that follow its name: "must …".
// It does not resolve the name; delivery checks the addresses each time it connects.
func CheckURL(text string, allowPrivate bool) error {
	u, err := url.Parse(text)
	switch {
	case len(text) > maxURL:
		return fmt.Errorf("must have at most %d characters", maxURL)
	case err != nil:
		return errors.New("must be a URL such as https://example.com/hooks")
	case u.Scheme != "https" && (u.Scheme != "http" || !allowPrivate):
		return errors.New("must begin with https://")
	case u.User != nil:
		return errors.New("must not contain a user name or password: the signature tells who sends")
	case strings.Contains(text, "#"):
		return errors.New("must not contain a fragment (#)")
	case u.Hostname() == "" || u.Opaque != "":
		return errors.New("must name a host")
	case !isPort(u.Port()):
		return errors.New("must have a port from 1 to 65535, or none")
	case !allowPrivate && isLocalHost(u.Hostname()):
		return errors.New("must lead to a public address: private, loopback and reserved ones are not allowed")
	}
	return nil
}

func isPort(text string) bool {
	if text == "" {
		return true
	}
	n, err := strconv.ParseUint(text, 10, 16)
	return err == nil && n > 0
}

// isLocalHost detects early what connecting would refuse anyway.
func isLocalHost(host string) bool {
	if addr, err := netip.ParseAddr(host); err == nil {
		return !isPublic(addr)
	}
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	return host == "localhost" || strings.HasSuffix(host, ".localhost")
}

// signatures returns the webhook-signature header: one signature over the id, the time and the body
// for each secret.
func signatures(secrets []ledger.Secret, messageID string, at time.Time, body []byte) (string, error) {
	if len(secrets) == 0 || len(secrets) > maxSecrets {
		return "", fmt.Errorf("an endpoint must have 1 to %d secrets", maxSecrets)
	}
	list := make([]string, len(secrets))
	for i, secret := range secrets {
		key, err := signingKey(secret)
		if err != nil {
			return "", err
		}
		mac := hmac.New(sha256.New, key)
		fmt.Fprintf(mac, "%s.%d.", messageID, at.Unix())
		mac.Write(body)
		list[i] = "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil))
	}
	return strings.Join(list, " "), nil
}

func signingKey(secret ledger.Secret) ([]byte, error) {
	encoded, found := strings.CutPrefix(secret.Reveal(), secretPrefix)
	key, err := base64.StdEncoding.DecodeString(encoded)
	if !found || err != nil || len(key) < minKey || len(key) > maxKey {
		return nil, fmt.Errorf("an endpoint's secret must be %s and %d to %d bytes in base64", secretPrefix, minKey, maxKey)
	}
	return key, nil
}
