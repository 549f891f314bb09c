package postgres

import (
	"context"
	"net"
	"strconv"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// hosts remembers which of the hosts in the URL took the last connection, and has the next
// one try it first. With a primary that does not answer any more as the first of the URL,
// each new connection would otherwise wait for it once more before it tries the second.
type hosts struct {
	mu    sync.Mutex
	names map[string]string // of addresses, as they were looked up
	last  place             // of the last connection; the zero place before the first
}

type place struct {
	host string
	port uint16
}

// prefer puts the host of the last connection first.
func (h *hosts) prefer(_ context.Context, config *pgx.ConnConfig) error {
	config.LookupFunc = h.lookUp
	h.mu.Lock()
	last := h.last
	h.mu.Unlock()
	all := append([]*pgconn.FallbackConfig{{Host: config.Host, Port: config.Port, TLSConfig: config.TLSConfig}}, config.Fallbacks...)
	var first, others []*pgconn.FallbackConfig // a host is there twice where it may be spoken to with and without TLS
	for _, one := range all {
		if (place{one.Host, one.Port}) == last {
			first = append(first, one)
		} else {
			others = append(others, one)
		}
	}
	all = append(first, others...)
	config.Host, config.Port, config.TLSConfig, config.Fallbacks = all[0].Host, all[0].Port, all[0].TLSConfig, all[1:]
	return nil
}

func (h *hosts) lookUp(ctx context.Context, host string) ([]string, error) {
	addresses, err := net.DefaultResolver.LookupHost(ctx, host)
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.names == nil || len(h.names) > 1000 { // names move, and none is needed for long
		h.names = make(map[string]string)
	}
	for _, address := range addresses {
		h.names[address] = host
	}
	return addresses, err
}

// connected notes where a connection leads.
func (h *hosts) connected(conn *pgx.Conn) {
	address, text, err := net.SplitHostPort(conn.PgConn().Conn().RemoteAddr().String())
	if err != nil {
		return // a socket of this machine: there is one host
	}
	port, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if host, ok := h.names[address]; ok {
		h.last = place{host, uint16(port)}
	}
}
