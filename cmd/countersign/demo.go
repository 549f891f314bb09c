package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"countersign/internal/ledger"
	"countersign/internal/observe"
)

type demoCommand struct {
	Yes    bool   `help:"Approve without asking, and do not pause." short:"y" env:"-"`
	Serve  bool   `help:"Leave the server running, with a console to look at." env:"-"`
	Listen string `help:"Address to serve on; port 0 takes a free one." default:"127.0.0.1:0" env:"-"`
}

// Run tells the story on a server and a store of its own. It fails when anything
// goes otherwise than it says.
func (c *demoCommand) Run(p *process) (err error) {
	folder, err := os.MkdirTemp("", "countersign-demo-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(folder)) }()
	d := &demo{stage: newStage(p, c.Yes), process: p, folder: folder, listen: c.Listen, yes: c.Yes, stays: c.Serve}
	if err := d.start(); err != nil {
		return errors.Join(err, d.stop())
	}
	err = d.play()
	return errors.Join(err, d.stop())
}

// demo is the story under way.
type demo struct {
	*stage
	process *process
	folder  string
	listen  string
	yes     bool
	stays   bool // the server runs on when the story is told

	server                    *server
	log                       bytes.Buffer // of the server, read when it has ended
	end                       context.CancelFunc
	ended                     chan error
	admin, agent, reviewer    *apiClient
	signIn                    string // a link for the console
	chain, approval, receipt  string
	approved                  bool
	payment, forged, exposure float64
}

func (d *demo) data() string { return filepath.Join(d.folder, "data") }

// start runs a real server on a free port of this machine.
func (d *demo) start() error {
	command := &serveCommand{Listen: d.listen, LogLevel: "warn", LogFormat: "text"}
	command.Data = d.data()
	ctx, end := context.WithCancel(d.process.ctx)
	d.end = end
	d.server = &server{
		command: command, process: &process{ctx: ctx, out: io.Discard, errOutput: &d.log},
		log: observe.NewLogger(&d.log, command.LogFormat, logLevel(command.LogLevel)),
	}
	if err := d.server.open(); err != nil {
		return err
	}
	first, err := d.server.opened.operator().Bootstrap(ctx)
	if err != nil {
		return err
	}
	d.ended = make(chan error, 1)
	go func() { d.ended <- d.server.serve() }()
	d.admin = d.client(first.Key.Text)
	d.signIn = signInLink(d.address(), first.SignIn)
	return nil
}

// stop ends the server and shows its log where it has something to say.
func (d *demo) stop() error {
	d.end()
	var err error
	if d.ended != nil {
		err = <-d.ended
	}
	err = errors.Join(err, d.server.close())
	if d.log.Len() > 0 {
		d.process.say("the server's log:\n%s", d.log.String())
	}
	return err
}

func (d *demo) address() string { return reachable("http", d.server.listener.Addr().String()) }

func (d *demo) client(key ledger.Secret) *apiClient {
	return newAPIClient(d.address(), key)
}

func (d *demo) play() error {
	chapters := []func(context.Context) error{d.rules, d.work, d.ask, d.forbid, d.seal, d.share, d.forge}
	if d.stays { // a console over a forged record would have nothing else to say
		chapters[len(chapters)-1] = d.populate
	}
	for _, chapter := range chapters {
		if err := chapter(d.process.ctx); err != nil {
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
