package postgres

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"

	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
)

//go:embed migrations/*.sql
var migrations embed.FS

// Migrations returns the migrations of the schema, one file each.
func Migrations() fs.FS { return migrations }

const versionTable = "schema_versions"

var (
	// ErrSchemaBehind says that the database was created by an older version of the program.
	ErrSchemaBehind = errors.New("the database's schema is older than this program: run countersign migrate")
	// ErrSchemaAhead says that the database was migrated by a newer version of the program.
	ErrSchemaAhead = errors.New("the database's schema is newer than this program: run the version that migrated it, or a later one")
)

// CheckSchema refuses a database with a schema that this program does not support.
func (s *Store) CheckSchema(ctx context.Context) error {
	current, latest, err := s.SchemaVersion(ctx)
	switch {
	case err != nil:
		return err
	case current < latest:
		return fmt.Errorf("%w (it has version %d, and this program needs %d)", ErrSchemaBehind, current, latest)
	case current > latest:
		return fmt.Errorf("%w (it has version %d, and this program knows %d)", ErrSchemaAhead, current, latest)
	}
	return nil
}

// SchemaVersion returns the version of the database, which is 0 if it is empty, and the newest
// version that this program knows.
func (s *Store) SchemaVersion(ctx context.Context) (current, latest int64, err error) {
	if latest, err = latestVersion(); err != nil {
		return 0, 0, err
	}
	var exists bool
	err = s.queryRow(ctx, "schema version", `select to_regclass($1) is not null`, []any{versionTable}, &exists)
	if err != nil || !exists {
		return 0, latest, err
	}
	err = s.queryRow(ctx, "schema version", `select coalesce(max(version_id), 0) from `+versionTable, nil, &current)
	return current, latest, err
}

func latestVersion() (int64, error) {
	files, err := fs.Glob(migrations, "migrations/*.sql")
	if err != nil || len(files) == 0 {
		return 0, errors.New("no migrations are embedded")
	}
	return goose.NumericComponent(files[len(files)-1])
}

// Migrate brings the database to the newest version. Several processes may call it at once: one
// migrates, and the others wait and find nothing to do.
func (s *Store) Migrate(ctx context.Context) error {
	latest, err := latestVersion()
	if err != nil {
		return err
	}
	return s.MigrateTo(ctx, latest)
}

// MigrateTo migrates the database forward to a version. It never goes back.
func (s *Store) MigrateTo(ctx context.Context, version int64) error {
	files, err := fs.Sub(migrations, "migrations")
	if err != nil {
		return err
	}
	db := stdlib.OpenDB(*s.pool.Config().ConnConfig)
	defer func() { _ = db.Close() }()
	provider, err := goose.NewProvider(goose.DialectPostgres, db, files,
		goose.WithTableName(versionTable), goose.WithSessionLocker(migrationLock{}), goose.WithDisableGlobalRegistry(true))
	if err != nil {
		return explain("read migrations", err)
	}
	if _, err := provider.UpTo(ctx, version); err != nil {
		return explain("migrate", err)
	}
	return nil
}

// migrationLock is an advisory lock for migrations. The number is arbitrary and must never change.
type migrationLock struct{}

const migrationLockKey = 0x636f756e74657273

// SessionLock implements lock.SessionLocker. Other processes may migrate first, and a migration may
// rewrite a large table, so only the caller's timeout applies.
func (migrationLock) SessionLock(ctx context.Context, conn *sql.Conn) error {
	_, err := conn.ExecContext(ctx, `set statement_timeout = 0; set lock_timeout = 0`)
	if err == nil {
		_, err = conn.ExecContext(ctx, `select pg_advisory_lock($1)`, int64(migrationLockKey))
	}
	return err
}

// SessionUnlock implements lock.SessionLocker.
func (migrationLock) SessionUnlock(ctx context.Context, conn *sql.Conn) error {
	_, err := conn.ExecContext(ctx, `select pg_advisory_unlock($1)`, int64(migrationLockKey))
	return err
}
