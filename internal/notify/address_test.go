package notify

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Only addresses of the public internet are public; private, reserved and embedded ones are not.
func TestIsPublic(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{
		// The public internet.
		"8.8.8.8":              true,
		"100.63.255.255":       true,
		"100.128.0.1":          true,
		"172.15.255.255":       true,
		"172.32.0.1":           true,
		"223.255.255.255":      true,
		"2606:4700:4700::1111": true,
		"2a00:1450::1":         true,
		// IPv4.
		"0.0.0.0":         false,
		"0.1.2.3":         false,
		"10.0.0.1":        false,
		"100.64.0.1":      false,
		"100.127.255.255": false,
		"127.0.0.1":       false,
		"127.255.255.254": false,
		"169.254.169.254": false,
		"172.16.0.1":      false,
		"172.31.255.255":  false,
		"192.0.0.170":     false,
		"192.0.2.1":       false,
		"192.88.99.1":     false,
		"192.168.1.1":     false,
		"198.18.0.1":      false,
		"198.19.255.255":  false,
		"198.51.100.1":    false,
		"203.0.113.1":     false,
		"224.0.0.1":       false,
		"239.255.255.255": false,
		"240.0.0.1":       false,
		"255.255.255.255": false,
		// IPv6.
		"::":               false,
		"::1":              false,
		"::7f00:1":         false, // IPv4-compatible loopback
		"::ffff:127.0.0.1": false, // IPv4-mapped
		"::ffff:8.8.8.8":   false,
		"64:ff9b::7f00:1":  false, // NAT64
		"64:ff9b:1::a00:1": false,
		"100::1":           false,
		"2001::1":          false, // Teredo
		"2001:db8::1":      false,
		"2002:7f00:1::1":   false, // 6to4 of loopback
		"3fff::1":          false,
		"5f00::1":          false,
		"fc00::1":          false,
		"fd12:3456::1":     false,
		"fe80::1":          false,
		"fe80::1%eth0":     false,
		"fec0::1":          false,
		"ff02::1":          false,
		"ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff": false,
	} {
		if got := isPublic(netip.MustParseAddr(text)); got != want {
			t.Errorf("isPublic(%s) = %v", text, got)
		}
	}
	if isPublic(netip.Addr{}) {
		t.Error("no address at all is public")
	}
}

// recorder represents the network: it records connection attempts.
type recorder struct{ addresses []string }

func (r *recorder) connect(_ context.Context, _, address string) (net.Conn, error) {
	r.addresses = append(r.addresses, address)
	return nil, errors.New("not in a test")
}

func answers(lists ...[]string) func(context.Context, string) ([]netip.Addr, error) {
	next := 0
	return func(context.Context, string) ([]netip.Addr, error) {
		var addresses []netip.Addr
		for _, text := range lists[next] {
			addresses = append(addresses, netip.MustParseAddr(text))
		}
		next = min(next+1, len(lists)-1)
		return addresses, nil
	}
}

// A webhook connects to exactly the addresses that were checked, and to none if one of them is
// private.
func TestDialerConnectsToWhatItJudged(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		answer    []string
		private   bool
		connected []string
		refused   bool
	}{
		"public":             {answer: []string{"8.8.8.8", "2606:4700::1"}, connected: []string{"8.8.8.8:443", "[2606:4700::1]:443"}},
		"public, mapped":     {answer: []string{"::ffff:8.8.8.8"}, connected: []string{"8.8.8.8:443"}},
		"loopback":           {answer: []string{"127.0.0.1"}, refused: true},
		"loopback, mapped":   {answer: []string{"::ffff:127.0.0.1"}, refused: true},
		"metadata service":   {answer: []string{"169.254.169.254"}, refused: true},
		"public and private": {answer: []string{"8.8.8.8", "10.0.0.1"}, refused: true},
		"private, allowed":   {answer: []string{"10.0.0.1"}, private: true, connected: []string{"10.0.0.1:443"}},
		"too many": {
			answer:    []string{"8.8.8.1", "8.8.8.2", "8.8.8.3", "8.8.8.4", "8.8.8.5"},
			connected: []string{"8.8.8.1:443", "8.8.8.2:443", "8.8.8.3:443", "8.8.8.4:443"},
		},
		"none": {},
	} {
		network := &recorder{}
		d := &dialer{allowPrivate: c.private, resolve: answers(c.answer), connect: network.connect}
		_, err := d.dial(t.Context(), "tcp", "hooks.example.com:443")
		if err == nil || errors.Is(err, errPrivateAddress) != c.refused {
			t.Errorf("%s: %v", name, err)
		}
		if diff := cmp.Diff(c.connected, network.addresses); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

// A name is resolved once for each connection: the checked address is the one that is connected to,
// whatever the name resolves to next time.
func TestDialerIsNotReboundByItsResolver(t *testing.T) {
	t.Parallel()
	network := &recorder{}
	d := &dialer{resolve: answers([]string{"8.8.8.8"}, []string{"127.0.0.1"}), connect: network.connect}
	if _, err := d.dial(t.Context(), "tcp", "rebinding.example.com:443"); errors.Is(err, errPrivateAddress) {
		t.Error("the public address was refused")
	}
	if _, err := d.dial(t.Context(), "tcp", "rebinding.example.com:443"); !errors.Is(err, errPrivateAddress) {
		t.Error("the loopback address was not refused:", err)
	}
	if diff := cmp.Diff([]string{"8.8.8.8:443"}, network.addresses); diff != "" {
		t.Error(diff)
	}
}
