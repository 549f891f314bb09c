package notify

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"
)

// errPrivateAddress says that a host leads where only insiders should get.
var errPrivateAddress = errors.New("private or reserved address")

// A host name stands for no more addresses than this: each costs a time-out.
const maxAddresses = 4

const connectTimeout = 5 * time.Second

// Ranges of IPv4 that are not the public internet (RFC 6890 and its registry).
var reserved4 = prefixes(
	"0.0.0.0/8",       // this network, and unspecified
	"10.0.0.0/8",      // private
	"100.64.0.0/10",   // carrier-grade NAT
	"127.0.0.0/8",     // loopback
	"169.254.0.0/16",  // link-local, and the metadata services of clouds
	"172.16.0.0/12",   // private
	"192.0.0.0/24",    // protocol assignments
	"192.0.2.0/24",    // documentation
	"192.88.99.0/24",  // 6to4 relays
	"192.168.0.0/16",  // private
	"198.18.0.0/15",   // benchmarks
	"198.51.100.0/24", // documentation
	"203.0.113.0/24",  // documentation
	"224.0.0.0/4",     // multicast
	"240.0.0.0/4",     // future use, and broadcast
)

// global6 is all of IPv6 that is handed out. Loopback, unspecified, link-local,
// unique-local and multicast lie outside it, and so do the ranges that embed an
// IPv4 address: mapped, compatible and NAT64.
var global6 = netip.MustParsePrefix("2000::/3")

// Ranges within global6 that lead elsewhere all the same.
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

// dialer connects to public addresses alone. It looks a name up once and connects
// to the very addresses it has judged: a name that changes its mind between
// the check and the connection gains nothing.
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
	addresses, err := d.judged(ctx, host)
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

// judged resolves host. One private address among public ones spoils them all:
// no honest name has both.
func (d *dialer) judged(ctx context.Context, host string) ([]netip.Addr, error) {
	found, err := d.resolve(ctx, host)
	if err != nil {
		return nil, err
	}
	if len(found) == 0 {
		return nil, &net.DNSError{Err: "no address", Name: host}
	}
	addresses := make([]netip.Addr, len(found))
	for i, addr := range found {
		// Resolvers hand out IPv4 addresses in either form, and the system
		// connects to both alike.
		addresses[i] = addr.Unmap()
		if !d.allowPrivate && !isPublic(addresses[i]) {
			return nil, fmt.Errorf("resolve: %w", errPrivateAddress)
		}
	}
	return addresses[:min(len(addresses), maxAddresses)], nil
}
