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
	maxURL             = 8 << 10
	defaultConnections = 20

	// connectTimeout applies to each host of the URL. A caller that waits for a read must be able
	// to try the second host if the first one does not answer.
	connectTimeout = 3 * time.Second
)

// sessionSettings are set on every connection, except those that the URL sets.
var sessionSettings = map[string]string{
	"synchronous_commit": "on",
	"statement_timeout":  "30s",
	// Longer than a replica that stopped in the middle of a transaction can hold a lock, plus its
	// own wait for another such replica.
	"lock_timeout": "8s",
	// A replica that vanishes or freezes in the middle of a transaction must not hold its locks
	// until TCP times out: a kill switch waits for them.
	"idle_in_transaction_session_timeout": "3s",
	// Every statement finds its rows through an index. Without these settings the planner would
	// cache plans with sequential scans, made while the tables were small, and keep them while the
	// tables grow.
	"enable_seqscan":   "off",
	"enable_hashjoin":  "off",
	"enable_mergejoin": "off",
	// For the same reason, planning a statement again for its parameters gains nothing, and it
	// would take longer than most statements.
	"plan_cache_mode": "force_generic_plan",
	"jit":             "off",
}

// durableCommits are the values of synchronous_commit with which a commit is acknowledged only
// after it is on disk, and on the standby if there is one.
var durableCommits = []string{"on", "remote_apply"}

func parseURL(url string) (*pgxpool.Config, error) {
	if !strings.HasPrefix(url, "postgres://") && !strings.HasPrefix(url, "postgresql://") {
		return nil, errors.New("the database URL must have the form postgres://user@host:5432/database")
	}
	if len(url) > maxURL {
		return nil, fmt.Errorf("the database URL must have at most %d characters", maxURL)
	}
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		// The cause may contain the password, and a URL that cannot be parsed cannot be redacted
		// reliably.
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
		return errors.New("the database URL sets default_query_exec_mode to a mode that returns results as text, which this program does not support: remove it")
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

// dialer detects a peer that has disappeared: with keep-alives when the connection is idle, and
// with a limit on how long sent data may stay unacknowledged.
var dialer = &net.Dialer{
	KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 5 * time.Second, Interval: 2 * time.Second, Count: 3},
	Control: func(_, _ string, conn syscall.RawConn) (err error) {
		const userTimeout, milliseconds = 0x12, 10_000 // TCP_USER_TIMEOUT of Linux
		if runtime.GOOS != "linux" {
			return nil
		}
		// Other kinds of sockets do not support the option and do not need it.
		return conn.Control(func(fd uintptr) {
			_ = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_TCP, userTimeout, milliseconds)
		})
	},
}

// keepConnection reports whether to keep a connection after an error. It drops a connection that
// the server is about to close, one to a primary that has become a standby, so that the next one
// finds the new primary, and one whose prepared statements were lost, as can happen with a pooler.
func keepConnection(_ *pgconn.PgConn, refusal *pgconn.PgError) bool {
	return refusal.SeverityUnlocalized != "FATAL" && refusal.Code != codeReadOnly && refusal.Code != codeNoStatement
}

// applySettings applies the settings that the URL does not set. It runs after connecting, because
// connection poolers refuse settings in the start-up message.
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

// hosts remembers which host of the URL accepted the last connection, so that the next one tries it
// first. Otherwise, if the first host of the URL no longer answers, every new connection would wait
// for it before trying the second.
type hosts struct {
	mu    sync.Mutex
	names map[string]string // host names by address
	last  hostPort          // of the last connection
}

type hostPort struct {
	host string
	port uint16
}

// prefer moves the host of the last connection to the front.
func (h *hosts) prefer(_ context.Context, config *pgx.ConnConfig) error {
	config.LookupFunc = h.lookUp
	h.mu.Lock()
	last := h.last
	h.mu.Unlock()
	all := append([]*pgconn.FallbackConfig{{Host: config.Host, Port: config.Port, TLSConfig: config.TLSConfig}}, config.Fallbacks...)
	var first, others []*pgconn.FallbackConfig // a host occurs twice if TLS is optional
	for _, one := range all {
		if (hostPort{one.Host, one.Port}) == last {
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
	if h.names == nil || len(h.names) > 1000 { // bound the map; old entries are not needed
		h.names = make(map[string]string)
	}
	for _, address := range addresses {
		h.names[address] = host
	}
	return addresses, err
}

// connected records the host of a connection.
func (h *hosts) connected(conn *pgx.Conn) {
	address, text, err := net.SplitHostPort(conn.PgConn().Conn().RemoteAddr().String())
	if err != nil {
		return // a Unix socket; there is only one host
	}
	port, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if host, ok := h.names[address]; ok {
		h.last = hostPort{host, uint16(port)}
	}
}
