package main

import (
	"context"
	"errors"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"countersign/internal/ledger"
)

// noKeys is for reading what a receipt claims, without judging it.
type noKeys struct{}

func (noKeys) CurrentKey() string { return "" }

func (noKeys) MAC(string, uuid.UUID, ledger.Purpose, ...[]byte) (mac [32]byte, ok bool) {
	return mac, false
}

func (e *examination) withPostgres(ctx context.Context, use func(*pgx.Conn) finding) finding {
	// The address may hold settings of a pool, which a lone connection would pass
	// on to the server.
	config, err := pgxpool.ParseConfig(e.storage.Database)
	if err != nil {
		return failed("--database cannot be read") // the cause may repeat a password
	}
	conn, err := pgx.ConnectConfig(ctx, config.ConnConfig)
	if err != nil {
		return failed("cannot connect: check --database and that the server is up")
	}
	defer conn.Close(context.WithoutCancel(ctx))
	return use(conn)
}

// postgresDurability reads what the server promises. What it says of
// synchronous_commit is only its default: countersign sets its own connections.
func (e *examination) postgresDurability(ctx context.Context) finding {
	return e.withPostgres(ctx, func(conn *pgx.Conn) finding {
		var version, fsync, pages, commit string
		err := conn.QueryRow(ctx, `select current_setting('server_version'), current_setting('fsync'),
			current_setting('full_page_writes'), current_setting('synchronous_commit')`).Scan(&version, &fsync, &pages, &commit)
		switch {
		case err != nil:
			return failed("%v", err)
		case fsync != "on":
			return failed("fsync is %s: a power cut can destroy the database; set fsync = on", fsync)
		case pages != "on":
			return warning("full_page_writes is %s: safe only on storage that never tears a page", pages)
		case commit != "on" && commit != "remote_apply":
			return ok("PostgreSQL %s, fsync on; synchronous_commit is %s by default, and on for countersign's connections", version, commit)
		}
		return ok("PostgreSQL %s, fsync on, synchronous_commit %s", version, commit)
	})
}

func (e *examination) replicasRun(ctx context.Context) finding {
	connections, err := e.replicas(ctx)
	switch {
	case err != nil:
		return skipped("%v", err)
	case connections == 0:
		return ok("none is connected to this database")
	}
	return ok("%d connections of countersign to this database", connections)
}

// replicas counts the connections of other processes.
func (e *examination) replicas(ctx context.Context) (connections int, err error) {
	found := e.withPostgres(ctx, func(conn *pgx.Conn) finding {
		err := conn.QueryRow(ctx, `select count(*) from pg_stat_activity
			where datname = current_database() and application_name = 'countersign' and pid <> pg_backend_pid()`).Scan(&connections)
		if err != nil {
			return failed("%v", err)
		}
		return ok("")
	})
	if found.Status != findingOK {
		return 0, errors.New(found.Detail)
	}
	return connections, nil
}
