package main

import (
	"context"
	"database/sql"
	"errors"
	"net/url"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	sqlitedriver "modernc.org/sqlite"
	sqlitelib "modernc.org/sqlite/lib"

	"countersign/internal/cli"
	"countersign/internal/store/postgres"
	"countersign/internal/store/sqlite"
)

// drivers is the one place that chooses between the stores and knows their drivers.
type drivers struct{}

func (drivers) OpenSQLite(ctx context.Context, path string) (cli.Database, error) {
	db, err := sqlite.Open(ctx, path)
	if err != nil {
		return nil, err // not db: a nil *Store would not be a nil interface
	}
	return db, nil
}

func (drivers) OpenPostgres(ctx context.Context, address string) (cli.Database, error) {
	db, err := postgres.Open(ctx, address)
	if err != nil {
		return nil, err
	}
	return db, nil
}

func (drivers) SQLiteVersion(ctx context.Context) (version string, err error) {
	db, err := sql.Open("sqlite", ":memory:")
	if err != nil {
		return "", err
	}
	defer db.Close()
	err = db.QueryRowContext(ctx, "SELECT sqlite_version()").Scan(&version)
	return version, err
}

func (drivers) SQLiteQuickCheck(ctx context.Context, path string) (verdict string, err error) {
	db, err := sql.Open("sqlite", "file:"+escaped(path)+"?mode=ro&_pragma=busy_timeout(5000)")
	if err != nil {
		return "", err
	}
	defer db.Close()
	err = db.QueryRowContext(ctx, "PRAGMA quick_check(1)").Scan(&verdict)
	var failed *sqlitedriver.Error
	if errors.As(err, &failed) && (failed.Code()&0xff == sqlitelib.SQLITE_CORRUPT || failed.Code()&0xff == sqlitelib.SQLITE_NOTADB) {
		return err.Error(), nil
	}
	return verdict, err
}

// escaped is a path as SQLite's driver takes it in a URI.
func escaped(path string) string { return (&url.URL{Path: path}).EscapedPath() }

// checkPostgresURL refuses an address that the driver cannot parse. The error does
// not repeat it, since it may hold a password.
func checkPostgresURL(address string) error {
	if _, err := pgxpool.ParseConfig(address); err != nil {
		return errors.New("--database cannot be parsed: check its port and options, and that special characters in user and password are percent-encoded")
	}
	return nil
}

func (drivers) PostgresSettings(ctx context.Context, address string) (s cli.PostgresSettings, err error) {
	err = onPostgres(ctx, address, func(conn *pgx.Conn) error {
		return conn.QueryRow(ctx, `select current_setting('server_version'), current_setting('fsync'),
			current_setting('full_page_writes'), current_setting('synchronous_commit')`).
			Scan(&s.Version, &s.Fsync, &s.FullPageWrites, &s.SynchronousCommit)
	})
	return s, err
}

func (drivers) PostgresConnections(ctx context.Context, address string) (connections int, err error) {
	err = onPostgres(ctx, address, func(conn *pgx.Conn) error {
		return conn.QueryRow(ctx, `select count(*) from pg_stat_activity
			where datname = current_database() and application_name = 'countersign' and pid <> pg_backend_pid()`).Scan(&connections)
	})
	return connections, err
}

// onPostgres runs use on a connection of its own.
func onPostgres(ctx context.Context, address string, use func(*pgx.Conn) error) error {
	// The address may hold settings of a pool. A plain connection would send them to
	// the server, which does not know them.
	config, err := pgxpool.ParseConfig(address)
	if err != nil {
		return errors.New("--database cannot be parsed")
	}
	conn, err := pgx.ConnectConfig(ctx, config.ConnConfig)
	if err != nil {
		return errors.New("cannot connect: check --database and that the server is up")
	}
	defer conn.Close(context.WithoutCancel(ctx))
	return use(conn)
}
