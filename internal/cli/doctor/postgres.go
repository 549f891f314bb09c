package doctor

import (
	"context"

	"countersign/internal/cli"
)

// postgresDurability checks the server's settings. synchronous_commit is only the server's default:
// countersign sets it on its own connections.
func (e *examination) postgresDurability(ctx context.Context) finding {
	s, err := e.process.Databases.PostgresSettings(ctx, e.storage.Database)
	switch {
	case err != nil:
		return failed("%v", err)
	case s.Fsync != "on":
		return failed("fsync is %s: a power cut can destroy the database; set fsync = on", s.Fsync)
	case s.FullPageWrites != "on":
		return warning("full_page_writes is %s: safe only on storage that never tears a page", s.FullPageWrites)
	case s.SynchronousCommit != "on" && s.SynchronousCommit != "remote_apply":
		return ok("PostgreSQL %s, fsync on; synchronous_commit is %s by default, and on for countersign's connections", s.Version, s.SynchronousCommit)
	}
	return ok("PostgreSQL %s, fsync on, synchronous_commit %s", s.Version, s.SynchronousCommit)
}

func (e *examination) replicasRun(ctx context.Context) finding {
	connections, err := e.process.Databases.PostgresConnections(ctx, e.storage.Database)
	switch {
	case err != nil:
		return skipped("%v", err)
	case connections == 0:
		return ok("none is connected to this database")
	}
	return ok("%s of countersign to this database", cli.Count(connections, "connection"))
}
