package cli

import (
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"strconv"
	"strings"

	"countersign/internal/ledger"
)

// ParseBaseURL checks the URL of a server and returns it without a trailing slash.
func ParseBaseURL(flag, text string) (string, error) {
	base, err := url.Parse(text)
	if err != nil || base.Host == "" || (base.Scheme != "http" && base.Scheme != "https") || base.User != nil || strings.ContainsAny(text, "?#") {
		return "", fmt.Errorf("%s must have the form https://host", flag)
	}
	return strings.TrimRight(text, "/"), nil
}

// SignInLink returns a link to the console. The secret is in the fragment, which
// browsers do not send.
func SignInLink(base string, secret ledger.Secret) string {
	return base + "/sign-in#" + secret.Reveal()
}

// CheckListen checks the form of an address to listen on.
func CheckListen(flag, address string) error {
	_, port, err := net.SplitHostPort(address)
	if err == nil {
		_, err = strconv.ParseUint(port, 10, 16)
	}
	if err != nil {
		return fmt.Errorf("%s must have the form host:port, such as 127.0.0.1:8080; port 0 picks a free one", flag)
	}
	return nil
}

// ReachableURL returns the URL of a server that listens on address. For a server on all
// interfaces, the host is localhost.
func ReachableURL(scheme, address string) string {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return scheme + "://" + address
	}
	if bound, err := netip.ParseAddr(host); host == "" || (err == nil && bound.IsUnspecified()) {
		host = "localhost"
	}
	return scheme + "://" + net.JoinHostPort(host, port)
}

// DefaultListen is the default of serve's --listen.
const DefaultListen = "127.0.0.1:8080"
