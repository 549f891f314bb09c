// Command countersign runs the Countersign server and its command line. This package
// only wires parts together: flags into configuration, drivers into ports, ports into
// the service, the service into its front ends. Commands other than serve live in
// internal/cli.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// The first signal asks for an orderly shutdown. Signals then get their default
	// effect back, so a second one ends the program at once.
	context.AfterFunc(ctx, stop)
	os.Exit(run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}
