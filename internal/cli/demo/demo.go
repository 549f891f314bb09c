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
	Serve  bool   `help:"Leave the server running, with a console to look at." env:"-"`
	Listen string `help:"Address to listen on; port 0 picks a free one." default:"127.0.0.1:0" env:"-"`
}

// Run tells the story on a server and a store of its own. It fails when anything
// goes otherwise than it says.
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

// Host is what the demo needs of the program around it. The main package implements
// it.
type Host interface {
	// OpenServer opens a server on an embedded database. It logs warnings as text.
	// After an error nothing is left open.
	OpenServer(ctx context.Context, data, listen string, log io.Writer) (Server, error)
	// ReplaceInPayloads replaces a text in the stored payloads of an embedded database,
	// as an intruder would, and returns how many it changed.
	ReplaceInPayloads(ctx context.Context, file, old, replacement string) (int64, error)
}

// Server is a server in this process.
type Server interface {
	URL() string
	// Bootstrap makes the first organization with its first key.
	Bootstrap(ctx context.Context) (*service.FirstStart, error)
	Backup(ctx context.Context, file string) error
	// Serve answers requests until the context of OpenServer ends.
	Serve() error
	Close() error
}

// demo is the story under way.
type demo struct {
	*stage
	process *cli.Process
	host    Host
	folder  string
	listen  string
	yes     bool
	stays   bool // the server runs on when the story is told

	server                    Server       // nil before it runs
	log                       bytes.Buffer // of the server, read when it has ended
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

// stop ends the server and shows its log where it has something to say.
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
	if d.stays { // a console over a forged record would have nothing else to say
		chapters[len(chapters)-1] = d.populate
	}
	for _, chapter := range chapters {
		if err := chapter(d.process.Ctx); err != nil {
			return fmt.Errorf("the story does not go on: %w", err)
		}
	}
	if d.stays {
		return d.waitForEnd()
	}
	d.epilogue()
	return nil
}

// expect is for what the story tells: one that is not true is not told.
func expect(holds bool, what string, args ...any) error {
	if holds {
		return nil
	}
	return fmt.Errorf("expected "+what, args...)
}
