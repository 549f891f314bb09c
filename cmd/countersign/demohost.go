package main

import (
	"context"
	"database/sql"
	"errors"
	"io"

	"countersign/internal/cli"
	"countersign/internal/cli/demo"
	"countersign/internal/observe"
	"countersign/internal/service"
)

// demoHost runs the demo's server in this process.
type demoHost struct{}

func (demoHost) OpenServer(ctx context.Context, data, listen string, log io.Writer) (demo.Server, error) {
	command := &serveCommand{Listen: listen, LogLevel: "warn", LogFormat: "text"}
	command.Data = data
	s := &server{
		command: command, process: &cli.Process{Ctx: ctx, Out: io.Discard, Err: log, Databases: drivers{}},
		log: observe.NewLogger(log, command.LogFormat, cli.LogLevel(command.LogLevel)),
	}
	if err := s.open(); err != nil { //nolint:contextcheck // the signer ends with the service, not with a context
		return nil, errors.Join(err, s.close())
	}
	return demoServer{s}, nil
}

// ReplaceInPayloads goes through SQLite: elsewhere in the file there may be what is
// left of older pages.
func (demoHost) ReplaceInPayloads(ctx context.Context, file, old, replacement string) (int64, error) {
	db, err := sql.Open("sqlite", "file:"+escaped(file))
	if err != nil {
		return 0, err
	}
	defer db.Close()
	changed, err := db.ExecContext(ctx, `UPDATE events SET payload = CAST(replace(CAST(payload AS TEXT), ?1, ?2) AS BLOB)
		WHERE instr(CAST(payload AS TEXT), ?1) > 0`, old, replacement)
	if err != nil {
		return 0, err
	}
	return changed.RowsAffected()
}

type demoServer struct{ s *server }

func (d demoServer) URL() string { return cli.ReachableURL("http", d.s.listener.Addr().String()) }

func (d demoServer) Bootstrap(ctx context.Context) (*service.FirstStart, error) {
	return d.s.opened.Operator().Bootstrap(ctx)
}

func (d demoServer) Backup(ctx context.Context, file string) error {
	return d.s.opened.Store.Backup(ctx, file)
}

func (d demoServer) Serve() error { return d.s.serve() }

func (d demoServer) Close() error { return d.s.close() }
