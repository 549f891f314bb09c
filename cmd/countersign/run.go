package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"

	"github.com/alecthomas/kong"

	"countersign/internal/observe"
)

// commandLine is every command.
type commandLine struct {
	Serve       serveCommand        `cmd:"" help:"Serve the API."`
	Migrate     migrateCommand      `cmd:"" help:"Bring the database's schema up to date."`
	Orgs        orgsCommands        `cmd:"" help:"Make and list organizations."`
	Keys        keysCommands        `cmd:"" help:"Work with API keys and the signing keys."`
	Verify      verifyCommand       `cmd:"" help:"Verify one receipt in the local store (exit 0 valid, 1 tampered, 2 could not read)."`
	Audit       auditCommand        `cmd:"" help:"Walk the whole ledger (exit 0 intact, 1 tampered, 2 could not read)."`
	Rollback    rollbackCommands    `cmd:"" help:"Go on with a database that was put back to an earlier day."`
	Heads       headsCommands       `cmd:"" help:"Show, export and import what was acknowledged, as the file of heads remembers it."`
	Tampering   tamperingCommands   `cmd:"" help:"List and acknowledge what was changed outside the service."`
	Import      importCommands      `cmd:"" help:"Import what was made elsewhere."`
	SigningKeys signingKeysCommands `cmd:"" help:"List the keys that sign decisions, and confirm those of imported ones."`
	LegacyUse   legacyUseCommand    `cmd:"" help:"List how often routes were used that are kept for compatibility alone."`
	Policy      policyCommands      `cmd:"" help:"Check and test policy sets; try them on recorded events, and put them in force, over the API."`
	Approvals   approvalsCommands   `cmd:"" help:"List and decide what waits for a person, over the API."`
	KillSwitch  killSwitchCommands  `cmd:"" help:"Stop everything, or let agents act again, over the API."`
	Chains      chainsCommands      `cmd:"" help:"List and show chains, over the API."`
	Receipts    receiptsCommands    `cmd:"" help:"List and print receipts, over the API."`
	Webhooks    webhooksCommands    `cmd:"" help:"List webhooks, over the API."`
	Backup      backupCommand       `cmd:"" help:"Copy the embedded database to a new file while it is in use."`
	Restore     restoreCommand      `cmd:"" help:"Put a backup in place of the database, as a ledger of its own."`
	Health      healthCommand       `cmd:"" help:"Ask a running server whether it is ready (exit 1 when it is not)."`
	Doctor      doctorCommand       `cmd:"" help:"Check folders, keys, database and clock (exit 1 when a check fails)."`
	Demo        demoCommand         `cmd:"" help:"See it all in a minute, on a throw-away store: actions, an approval of yours, a receipt, a forgery found out."`
	Bench       benchCommand        `cmd:"" help:"Measure this machine and this binary: events, durability, hashing, audit."`
	Version     versionCommand      `cmd:"" help:"Show which version this is."`
	Completion  completionCommand   `cmd:"" help:"Write a completion script for a shell."`
}

const description = `Countersign governs what software agents do and proves it.

Flags shown with a variable can be set by it, or by a file named with --config. A flag wins over the
environment, the environment over the file, the file over the default.

Exit status: 0 done; 1 it failed, or a check did; 2 wrong usage, or what was asked about could not be read.`

// process is what a command may use of the world, so that tests run the same
// commands inside one process.
type process struct {
	ctx            context.Context
	in             io.Reader
	out, errOutput io.Writer
	model          *kong.Application
}

const (
	exitFailed = 1
	// exitUnclear is for wrong usage and for what could not be read: in both
	// cases nothing was found out.
	exitUnclear = 2
)

// exitError ends the program with a status of its own. Without an error nothing
// is printed: the command has said it already.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit status %d", e.code)
	}
	return e.err.Error()
}

func (e *exitError) Unwrap() error { return e.err }

// unclear marks an error as one of usage or reading.
func unclear(err error) error {
	if err == nil {
		return nil
	}
	return &exitError{exitUnclear, err}
}

// usageError is a fault of the command line: whoever made it is told where the
// right usage is described.
type usageError struct{ error }

func (e *usageError) Unwrap() error { return e.error }

// misused marks an error as one of usage.
func misused(err error) error {
	if err == nil {
		return nil
	}
	return &usageError{err}
}

// run is the program: arguments in, exit status out.
func run(ctx context.Context, args []string, in io.Reader, out, errOutput io.Writer) int {
	args = translated(args)
	var cli commandLine
	exited := -1
	parser, err := newParser(&cli, out, errOutput, func(code int) { exited = code })
	if err != nil {
		return report(errOutput, unclear(err))
	}
	command, err := parser.Parse(args)
	if exited >= 0 { // --help was answered
		return exited
	}
	if err != nil {
		return report(errOutput, unclear(explained(err)))
	}
	err = command.Run(&process{ctx: ctx, in: in, out: out, errOutput: errOutput, model: parser.Model})
	var misuse *usageError
	if errors.As(err, &misuse) {
		err = unclear(described(misuse, command))
	}
	return report(errOutput, err)
}

// translated takes what people try by habit for what it means here.
func translated(args []string) []string {
	switch {
	case slices.Equal(args, []string{"--version"}):
		return []string{"version"}
	case len(args) > 0 && args[0] == "help":
		return append(slices.Clone(args[1:]), "--help")
	}
	return args
}

// explained is an error of parsing as a person can use it.
func explained(err error) error {
	var config *configError
	if errors.As(err, &config) { // without the flag in whose name the file was read
		return fmt.Errorf("%w; see countersign serve --help", config)
	}
	var parse *kong.ParseError
	if errors.As(err, &parse) {
		return described(clarified(err), parse.Context)
	}
	return fmt.Errorf("%w; see countersign --help", err)
}

// withoutValue is what the parser says of a flag that is followed by another one.
var withoutValue = regexp.MustCompile(`^(--[a-z-]+): expected (\S+) value but got .* \((?:long|short) flag\)`)

// clarified says of a flag without its value that the value is missing. The parser
// advises to take the next flag for it.
func clarified(err error) error {
	if found := withoutValue.FindStringSubmatch(err.Error()); found != nil {
		return fmt.Errorf("%s needs a value", found[1])
	}
	return err
}

// described says where the right usage is described: at the command that was
// meant, as far as it is known.
func described(err error, parsed *kong.Context) error {
	where := "countersign"
	for _, step := range parsed.Path {
		if step.Command != nil {
			where = step.Command.FullPath()
		}
	}
	return fmt.Errorf("%w; see %s --help", err, where)
}

func newParser(cli *commandLine, out, errOutput io.Writer, exit func(int)) (*kong.Kong, error) {
	return kong.New(cli,
		kong.Name("countersign"),
		kong.Description(description),
		kong.Writers(out, errOutput),
		kong.Exit(exit),
		kong.DefaultEnvars("COUNTERSIGN"),
		kong.Resolvers(&configFile{}),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, NoExpandSubcommands: false}),
	)
}

// report prints an error and returns the status that it ends the program with.
// Standard error often ends up where the log does, so the log's rule holds.
func report(w io.Writer, err error) int {
	if err == nil {
		return 0
	}
	code := exitFailed
	var exit *exitError
	if errors.As(err, &exit) {
		code, err = exit.code, exit.err
	}
	if err != nil {
		fmt.Fprintln(w, "countersign:", observe.Mask(err.Error()))
	}
	return code
}
