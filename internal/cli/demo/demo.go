package demo

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"countersign/internal/cli"
	"countersign/internal/ledger"
	"countersign/internal/service"
)

// Command is the demo command.
type Command struct {
	Yes    bool   `help:"Approve without asking, and do not pause." short:"y" env:"-"`
	Serve  bool   `help:"Keep the server running, with a console to look at." env:"-"`
	Listen string `help:"Address to listen on; port 0 picks a free one." default:"127.0.0.1:0" env:"-"`
}

// Run runs the demo on its own server and store. It fails if anything does not happen as described.
func (c *Command) Run(p *cli.Process, host Host) (err error) {
	folder, err := os.MkdirTemp("", "countersign-demo-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(folder)) }()
	d := &demo{stage: newStage(p, c.Yes), process: p, host: host, folder: folder, listen: c.Listen, yes: c.Yes, stays: c.Serve}
	if err := d.start(); err != nil {
		return errors.Join(err, d.stop())
	}
	err = d.play()
	return errors.Join(err, d.stop())
}

// Host is what the demo needs from the program around it. The main package implements it.
type Host interface {
	// OpenServer opens a server on an embedded database. It logs warnings as text. If it fails,
	// nothing is left open.
	OpenServer(ctx context.Context, data, listen string, log io.Writer) (Server, error)
	// ReplaceInPayloads replaces a text in the stored payloads of an embedded database, like an
	// intruder, and returns how many rows it changed.
	ReplaceInPayloads(ctx context.Context, file, old, replacement string) (int64, error)
}

// Server is a server in this process.
type Server interface {
	URL() string
	// Bootstrap creates the first organization with its first key.
	Bootstrap(ctx context.Context) (*service.FirstStart, error)
	Backup(ctx context.Context, file string) error
	// Serve answers requests until the context of OpenServer ends.
	Serve() error
	Close() error
}

// demo is the state of the demo.
type demo struct {
	*stage
	process *cli.Process
	host    Host
	folder  string
	listen  string
	yes     bool
	stays   bool // the server keeps running at the end

	server                    Server       // nil before it is opened
	log                       bytes.Buffer // the server's log, read after it has ended
	end                       context.CancelFunc
	ended                     chan error
	admin, agent, reviewer    *cli.Client
	signIn                    string // a link for the console
	chain, approval, receipt  string
	approved                  bool
	payment, forged, exposure float64
}

func (d *demo) data() string { return filepath.Join(d.folder, "data") }

// start runs a real server on a free port of this machine.
func (d *demo) start() error {
	ctx, end := context.WithCancel(d.process.Ctx)
	d.end = end
	var err error
	if d.server, err = d.host.OpenServer(ctx, d.data(), d.listen, &d.log); err != nil {
		return err
	}
	first, err := d.server.Bootstrap(ctx)
	if err != nil {
		return err
	}
	d.ended = make(chan error, 1)
	go func() { d.ended <- d.server.Serve() }()
	d.admin = d.client(first.Key.Text)
	d.signIn = cli.SignInLink(d.address(), first.SignIn)
	return nil
}

// stop ends the server and prints its log if it is not empty.
func (d *demo) stop() error {
	d.end()
	var err error
	if d.ended != nil {
		err = <-d.ended
	}
	if d.server != nil {
		err = errors.Join(err, d.server.Close())
	}
	if d.log.Len() > 0 {
		d.process.Notef("the server's log:\n%s", d.log.String())
	}
	return err
}

func (d *demo) address() string { return d.server.URL() }

func (d *demo) client(key ledger.Secret) *cli.Client {
	return cli.NewClient(d.address(), key)
}

func (d *demo) play() error {
	chapters := []func(context.Context) error{d.rules, d.work, d.ask, d.forbid, d.seal, d.share, d.forge}
	if d.stays { // the console would show nothing but the forgery
		chapters[len(chapters)-1] = d.populate
	}
	for _, chapter := range chapters {
		if err := chapter(d.process.Ctx); err != nil {
			return fmt.Errorf("the demo failed: %w", err)
		}
	}
	if d.stays {
		return d.waitForEnd()
	}
	d.epilogue()
	return nil
}

// expect fails the demo if something that it is about to claim is not true.
func expect(holds bool, what string, args ...any) error {
	if holds {
		return nil
	}
	return fmt.Errorf("expected "+what, args...)
}
