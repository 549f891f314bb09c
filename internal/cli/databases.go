package cli

import (
	"context"

	"countersign/internal/store"
)

// Databases opens databases and reads what only their drivers know. The main
// package implements it, so that no command names a driver.
type Databases interface {
	// OpenSQLite opens a database file and creates it if it does not exist.
	OpenSQLite(ctx context.Context, path string) (Database, error)
	OpenPostgres(ctx context.Context, url string) (Database, error)

	SQLiteVersion(ctx context.Context) (string, error)
	// SQLiteQuickCheck returns "ok", or the first damage that it finds. It only reads. An error says
	// that it could not look for damage.
	SQLiteQuickCheck(ctx context.Context, path string) (string, error)

	// The errors of these do not repeat the URL, which may hold a password.
	PostgresSettings(ctx context.Context, url string) (PostgresSettings, error)
	// PostgresConnections counts the connections of other countersign processes.
	PostgresConnections(ctx context.Context, url string) (int, error)
}

// Database is a store and its schema.
type Database interface {
	store.Store
	Migrate(ctx context.Context) error
	SchemaVersion(ctx context.Context) (current, latest int64, err error)
}

// PostgresSettings are the settings of a PostgreSQL server that durability depends on.
type PostgresSettings struct {
	Version           string
	Fsync             string
	FullPageWrites    string
	SynchronousCommit string // the default of new connections
}
