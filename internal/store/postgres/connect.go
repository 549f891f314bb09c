package postgres

import (
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	longestURL         = 8 << 10
	defaultConnections = 20

	// connectTimeout is for each host of the URL: a caller that waits for a read must be
	// able to try the second when the first is gone without a word.
	connectTimeout = 3 * time.Second
)

// sessionSettings are those of every connection, each unless the URL sets it.
var sessionSettings = map[string]string{
	"synchronous_commit": "on",
	"statement_timeout":  "30s",
	// Longer than a replica can hold a lock that has stopped in the middle of a
	// transaction, after it has waited for another one that has.
	"lock_timeout": "8s",
	// A replica that vanishes, or is frozen, in the middle of a transaction must not keep
	// its locks for as long as TCP believes in it: a kill switch waits for them.
	"idle_in_transaction_session_timeout": "3s",
	// Every statement here finds its rows through an index. Left to itself, the
	// planner would cache plans made while the tables were small, which read
	// them whole, and keep to them while the tables grow.
	"enable_seqscan":   "off",
	"enable_hashjoin":  "off",
	"enable_mergejoin": "off",
	// For the same reason there is nothing to gain from planning a statement anew
	// for its parameters, which costs more than most of them take.
	"plan_cache_mode": "force_generic_plan",
	"jit":             "off",
}

// durableCommits are the values of synchronous_commit under which a commit is
// answered no sooner than it is on disk, and on the standby where there is one.
var durableCommits = []string{"on", "remote_apply"}

func parseURL(url string) (*pgxpool.Config, error) {
	if !strings.HasPrefix(url, "postgres://") && !strings.HasPrefix(url, "postgresql://") {
		return nil, errors.New("the database URL must have the form postgres://user@host:5432/database")
	}
	if len(url) > longestURL {
		return nil, fmt.Errorf("the database URL must have at most %d characters", longestURL)
	}
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		// The cause may repeat the password: a text that cannot be parsed cannot
		// be redacted for certain either.
		return nil, errors.New("the database URL cannot be read: check its port, its options (sslmode, pool_max_conns, …), " +
			"and that special characters in user and password are percent-encoded")
	}
	if !strings.Contains(url, "pool_max_conns") {
		config.MaxConns = defaultConnections
	}
	return config, configureConnections(config)
}

func configureConnections(config *pgxpool.Config) error {
	params := config.ConnConfig.RuntimeParams
	if value, given := params["synchronous_commit"]; given && !slices.Contains(durableCommits, value) {
		return fmt.Errorf("the database URL sets synchronous_commit to a value that loses acknowledged writes: remove it, or use one of %s",
			strings.Join(durableCommits, ", "))
	}
	switch config.ConnConfig.DefaultQueryExecMode {
	case pgx.QueryExecModeSimpleProtocol, pgx.QueryExecModeExec:
		return errors.New("the database URL sets default_query_exec_mode to one in which answers come as text, which this program does not read: remove it")
	}
	if params["application_name"] == "" {
		params["application_name"] = "countersign"
	}
	if config.ConnConfig.ConnectTimeout == 0 {
		config.ConnConfig.ConnectTimeout = connectTimeout
	}
	if config.ConnConfig.ValidateConnect == nil {
		config.ConnConfig.ValidateConnect = pgconn.ValidateConnectTargetSessionAttrsReadWrite
	}
	config.ConnConfig.OnPgError = keepConnection
	config.ConnConfig.DialFunc = dialer.DialContext
	known := new(hosts)
	config.BeforeConnect = known.prefer
	config.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
		known.connected(conn)
		return applySettings(ctx, conn)
	}
	return nil
}

// dialer notices a peer that is gone without a word: by asking it when nothing is under
// way, and by waiting no longer than that for what was sent to be received.
var dialer = &net.Dialer{
	KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 5 * time.Second, Interval: 2 * time.Second, Count: 3},
	Control: func(_, _ string, conn syscall.RawConn) (err error) {
		const userTimeout, milliseconds = 0x12, 10_000 // TCP_USER_TIMEOUT of Linux
		if runtime.GOOS != "linux" {
			return nil
		}
		// A socket of another kind does not know it, and needs none.
		return conn.Control(func(fd uintptr) {
			_ = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_TCP, userTimeout, milliseconds)
		})
	},
}

// keepConnection gives up a connection that the server is about to end, one to a
// primary that has become a standby, for the next one finds the new primary, and
// one that has lost its prepared statements, as a pooler's may.
func keepConnection(_ *pgconn.PgConn, refusal *pgconn.PgError) bool {
	return refusal.SeverityUnlocalized != "FATAL" && refusal.Code != codeReadOnly && refusal.Code != codeNoStatement
}

// applySettings sets what the URL did not. It does so after connecting, and not
// in the start-up message, because connection poolers refuse settings there.
func applySettings(ctx context.Context, conn *pgx.Conn) error {
	given := conn.Config().RuntimeParams
	var names, values []string
	for name, value := range sessionSettings {
		if _, ok := given[name]; !ok {
			names, values = append(names, name), append(values, value)
		}
	}
	_, err := conn.Exec(ctx, "select set_config(name, value, false) from unnest($1::text[], $2::text[]) s(name, value)", names, values)
	return err
}

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
