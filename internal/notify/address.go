package notify

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"
)

// errPrivateAddress says that a host resolves to an address that is not public.
var errPrivateAddress = errors.New("private or reserved address")

// maxAddresses bounds the addresses of a host name, because each costs a timeout.
const maxAddresses = 4

const connectTimeout = 5 * time.Second

// Ranges of IPv4 that are not the public internet (RFC 6890 and its registry).
var reserved4 = prefixes(
	"0.0.0.0/8",       // this network, including unspecified
	"10.0.0.0/8",      // private
	"100.64.0.0/10",   // carrier-grade NAT
	"127.0.0.0/8",     // loopback
	"169.254.0.0/16",  // link-local, including the metadata services of clouds
	"172.16.0.0/12",   // private
	"192.0.0.0/24",    // protocol assignments
	"192.0.2.0/24",    // documentation
	"192.88.99.0/24",  // 6to4 relays
	"192.168.0.0/16",  // private
	"198.18.0.0/15",   // benchmarks
	"198.51.100.0/24", // documentation
	"203.0.113.0/24",  // documentation
	"224.0.0.0/4",     // multicast
	"240.0.0.0/4",     // future use, including broadcast
)

// global6 is all allocated IPv6 space. Loopback, unspecified, link-local, unique-local and
// multicast are outside of it, and so are the ranges that embed an IPv4 address: mapped, compatible
// and NAT64.
var global6 = netip.MustParsePrefix("2000::/3")

// Ranges within global6 that are not public.
var reserved6 = prefixes(
	"2001::/23",     // protocol assignments, and Teredo, which embeds IPv4
	"2001:db8::/32", // documentation
	"2002::/16",     // 6to4, which embeds IPv4
	"3fff::/20",     // documentation
)

func prefixes(texts ...string) []netip.Prefix {
	list := make([]netip.Prefix, len(texts))
	for i, text := range texts {
		list[i] = netip.MustParsePrefix(text)
	}
	return list
}

// isPublic reports whether addr is an ordinary address of the public internet.
func isPublic(addr netip.Addr) bool {
	if addr.Is4() {
		return !within(reserved4, addr)
	}
	return global6.Contains(addr) && !within(reserved6, addr)
}

func within(list []netip.Prefix, addr netip.Addr) bool {
	for _, prefix := range list {
		if prefix.Contains(addr) {
			return true
		}
	}
	return false
}

// dialer connects only to public addresses. It resolves a name once and connects to exactly the
// addresses that it has checked, so that DNS rebinding has no effect.
type dialer struct {
	allowPrivate bool
	resolve      func(ctx context.Context, host string) ([]netip.Addr, error)
	connect      func(ctx context.Context, network, address string) (net.Conn, error)
}

func newDialer(allowPrivate bool) *dialer {
	return &dialer{
		allowPrivate: allowPrivate,
		resolve: func(ctx context.Context, host string) ([]netip.Addr, error) {
			return net.DefaultResolver.LookupNetIP(ctx, "ip", host)
		},
		connect: (&net.Dialer{Timeout: connectTimeout}).DialContext,
	}
}

func (d *dialer) dial(ctx context.Context, network, address string) (net.Conn, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	addresses, err := d.resolvePublic(ctx, host)
	if err != nil {
		return nil, err
	}
	for _, addr := range addresses {
		var conn net.Conn
		if conn, err = d.connect(ctx, network, net.JoinHostPort(addr.String(), port)); err == nil {
			return conn, nil
		}
	}
	return nil, err
}

// resolvePublic resolves host and checks its addresses. One private address among public ones refuses them
// all, because no honest name has both.
func (d *dialer) resolvePublic(ctx context.Context, host string) ([]netip.Addr, error) {
	found, err := d.resolve(ctx, host)
	if err != nil {
		return nil, err
	}
	if len(found) == 0 {
		return nil, &net.DNSError{Err: "no address", Name: host}
	}
	addresses := make([]netip.Addr, len(found))
	for i, addr := range found {
		// Resolvers return IPv4 addresses in either form, and the system connects to both in the
		// same way.
		addresses[i] = addr.Unmap()
		if !d.allowPrivate && !isPublic(addresses[i]) {
			return nil, fmt.Errorf("resolve: %w", errPrivateAddress)
		}
	}
	return addresses[:min(len(addresses), maxAddresses)], nil
}
