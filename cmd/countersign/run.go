package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/alecthomas/kong"
)

// commandLine is every flag and command. Each flag of the server can also be set
// by an environment variable named COUNTERSIGN_ and the flag.
type commandLine struct {
	Serve serveCommand `cmd:"" help:"Serve the API and the console."`
}

// process is what a command may use of the world, so that tests run the same
// commands inside one process.
type process struct {
	ctx            context.Context
	in             io.Reader
	out, errOutput io.Writer
}

// exitError ends the program with a status of its own.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string { return e.err.Error() }
func (e *exitError) Unwrap() error { return e.err }

// run is the program: arguments in, exit status out.
func run(ctx context.Context, args []string, in io.Reader, out, errOutput io.Writer) int {
	var cli commandLine
	exited := -1
	parser, err := kong.New(&cli,
		kong.Name("countersign"),
		kong.Description("Countersign governs what software agents do and proves it."),
		kong.Writers(out, errOutput),
		kong.Exit(func(code int) { exited = code }),
		kong.DefaultEnvars("COUNTERSIGN"),
		kong.UsageOnError(),
	)
	if err != nil {
		fmt.Fprintln(errOutput, "countersign:", err)
		return 2
	}
	command, err := parser.Parse(args)
	if exited >= 0 {
		return exited
	}
	if err != nil {
		fmt.Fprintln(errOutput, "countersign:", err)
		return 2
	}
	err = command.Run(&process{ctx: ctx, in: in, out: out, errOutput: errOutput})
	var exit *exitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit):
		fmt.Fprintln(errOutput, "countersign:", exit.err)
		return exit.code
	default:
		fmt.Fprintln(errOutput, "countersign:", err)
		return 1
	}
}
