package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"github.com/alecthomas/kong"

	"countersign/internal/cli"
	"countersign/internal/cli/demo"
	"countersign/internal/cli/doctor"
	"countersign/internal/cli/gateway"
	"countersign/internal/cli/operate"
	"countersign/internal/cli/policy"
	"countersign/internal/cli/review"
	"countersign/internal/cli/witness"
)

// commandLine lists all commands.
type commandLine struct {
	Serve       serveCommand                `cmd:"" help:"Serve the API and the console."`
	Migrate     operate.MigrateCommand      `cmd:"" help:"Bring the database schema up to date."`
	Orgs        operate.OrgsCommands        `cmd:"" help:"Create and list organizations."`
	Keys        operate.KeysCommands        `cmd:"" help:"Create, list, rotate and revoke API keys; rotate the master key."`
	Verify      operate.VerifyCommand       `cmd:"" help:"Verify a bundle offline, or a receipt in the local store (exit 0 valid, 1 tampered, 2 could not tell)."`
	Audit       operate.AuditCommand        `cmd:"" help:"Verify the whole ledger (exit 0 intact, 1 tampered, 2 could not read)."`
	Reindex     operate.ReindexCommand      `cmd:"" help:"Add missing records to the search index: older ones, or those of a server of an earlier version."`
	Rollback    operate.RollbackCommands    `cmd:"" help:"Accept a restored, older database and resume sealing."`
	Heads       operate.HeadsCommands       `cmd:"" help:"Show, export and import the heads file, the record of what was acknowledged."`
	Tampering   operate.TamperingCommands   `cmd:"" help:"List and acknowledge findings of tampering."`
	Import      operate.ImportCommands      `cmd:"" help:"Import records from another system."`
	SigningKeys operate.SigningKeysCommands `cmd:"" help:"List the keys that sign decisions, and confirm the keys of imported decisions."`
	Log         operate.LogCommands         `cmd:"" help:"Show and revoke the keys that sign the transparency logs."`
	LegacyUse   operate.LegacyUseCommand    `cmd:"" help:"Show how often the legacy routes were used."`
	Policy      policy.Commands             `cmd:"" help:"Check and test policy sets; simulate and activate them over the API."`
	Approvals   review.ApprovalsCommands    `cmd:"" help:"List and decide pending approvals, over the API."`
	KillSwitch  review.KillSwitchCommands   `cmd:"" help:"Show, activate or deactivate the kill switch, over the API."`
	Chains      review.ChainsCommands       `cmd:"" help:"List and show chains, over the API."`
	Receipts    review.ReceiptsCommands     `cmd:"" help:"List and print receipts, over the API."`
	Bundle      review.BundleCommand        `cmd:"" help:"Download the evidence bundle of a receipt, which anyone can verify offline, over the API."`
	Shares      review.SharesCommands       `cmd:"" help:"Create, list and revoke public links to a receipt and its proof, over the API."`
	Webhooks    review.WebhooksCommands     `cmd:"" help:"List and test webhooks, and show their deliveries, over the API."`
	Gateway     gateway.Command             `cmd:"" help:"Govern any MCP server: decide each tool call, over the API, before the server gets it."`
	Witness     witness.Commands            `cmd:"" help:"Run a witness, which cosigns the checkpoints of transparency logs."`
	Backup      operate.BackupCommand       `cmd:"" help:"Copy the embedded database to a new file while it is in use."`
	Restore     operate.RestoreCommand      `cmd:"" help:"Restore a backup as a new ledger with its own id."`
	Health      doctor.HealthCommand        `cmd:"" help:"Ask a running server whether it is ready (exit 1 when it is not)."`
	Doctor      doctor.Command              `cmd:"" help:"Check folders, keys, database and clock (exit 1 when a check fails)."`
	Demo        demo.Command                `cmd:"" help:"Watch a one-minute tour on a temporary store: actions, an approval, a receipt, a detected forgery."`
	Bench       benchCommand                `cmd:"" help:"Measure this machine and this binary: events, durability, hashing, audit."`
	Version     versionCommand              `cmd:"" help:"Show the version."`
	Completion  completionCommand           `cmd:"" help:"Write a completion script for a shell."`
}

const description = `Countersign governs what software agents do and proves it.

Every flag can also be set by the environment variable shown with it, or in the file named by --config.
A flag takes precedence over the environment, the environment over the file, the file over the default.

Exit status: 0 success; 1 the command or a check failed; 2 wrong usage, or something could not be read.`

// run runs the program with its arguments and returns its exit status.
func run(ctx context.Context, args []string, in io.Reader, out, errOutput io.Writer) int {
	args = translateArgs(args)
	exited := -1
	parser, err := newParser(grammarOf(args), out, errOutput, func(code int) { exited = code })
	if err != nil {
		return cli.Report(errOutput, cli.Inconclusive(err))
	}
	command, err := parser.Parse(args)
	if exited >= 0 { // --help was answered
		return exited
	}
	if err != nil {
		return cli.Report(errOutput, cli.Inconclusive(explainParseError(err)))
	}
	if err := checkDatabase(command); err != nil {
		return cli.Report(errOutput, cli.Inconclusive(withHelp(err, command)))
	}
	command.BindTo(demoHost{}, (*demo.Host)(nil))
	output := &cli.Output{Writer: out}
	err = command.Run(&cli.Process{Ctx: ctx, In: in, Out: output, Err: errOutput, Version: currentBuild().Version, Databases: drivers{}})
	var misuse *cli.UsageError
	if errors.As(err, &misuse) {
		err = cli.Inconclusive(withHelp(misuse, command))
	}
	return cli.Report(errOutput, output.Complete(err))
}

// translateArgs accepts the common spellings "--version" and "help COMMAND".
func translateArgs(args []string) []string {
	switch {
	case slices.Equal(args, []string{"--version"}):
		return []string{"version"}
	case len(args) > 0 && args[0] == "help":
		return append(slices.Clone(args[1:]), "--help")
	}
	return args
}

// explainParseError adds to an error of parsing where the usage is described.
func explainParseError(err error) error {
	var config *configError
	if errors.As(err, &config) { // drops the flag that kong was resolving when the file was read
		return fmt.Errorf("%w; see countersign serve --help", config)
	}
	var parse *kong.ParseError
	if errors.As(err, &parse) {
		return withHelp(clarifyMissingValue(err), parse.Context)
	}
	return fmt.Errorf("%w; see countersign --help", err)
}

// missingValuePattern matches kong's error for a flag that is followed by another flag
// instead of its value.
var missingValuePattern = regexp.MustCompile(`^(--[a-z-]+): expected (\S+) value but got .* \((?:long|short) flag\)`)

// clarifyMissingValue replaces kong's error for a flag without a value, which suggests
// to use the next flag as the value.
func clarifyMissingValue(err error) error {
	if found := missingValuePattern.FindStringSubmatch(err.Error()); found != nil {
		return fmt.Errorf("%s needs a value", found[1])
	}
	return err
}

// withHelp adds to an error which help page to read: that of the command as far as it
// was parsed.
func withHelp(err error, parsed *kong.Context) error {
	where := "countersign"
	for _, step := range parsed.Path {
		if step.Command != nil {
			where = step.Command.FullPath()
		}
	}
	return fmt.Errorf("%w; see %s --help", err, where)
}

// grammarOf returns the command that args begin with, or else all of them, as a struct like commandLine. To read
// the tags of all commands takes longer than most commands do.
func grammarOf(args []string) any {
	if len(args) > 0 {
		name := strings.ReplaceAll(args[0], "-", "")
		for _, command := range reflect.VisibleFields(reflect.TypeFor[commandLine]()) {
			if strings.ToLower(command.Name) == name && command.Type != reflect.TypeFor[completionCommand]() {
				return reflect.New(reflect.StructOf([]reflect.StructField{{Name: command.Name, Type: command.Type, Tag: command.Tag}})).Interface()
			}
		}
	}
	return new(commandLine)
}

func newParser(commands any, out, errOutput io.Writer, exit func(int)) (*kong.Kong, error) {
	return kong.New(commands,
		kong.Name("countersign"),
		kong.Description(description),
		kong.Writers(out, errOutput),
		kong.Exit(exit),
		kong.DefaultEnvars("COUNTERSIGN"),
		kong.Resolvers(&configFile{}),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, NoExpandSubcommands: false}),
	)
}

// checkDatabase refuses a --database that PostgreSQL's driver cannot parse. The flag's
// own check knows no driver.
func checkDatabase(parsed *kong.Context) error {
	for _, flag := range parsed.Flags() {
		if address, ok := parsed.FlagValue(flag).(string); ok && flag.Name == "database" && address != "" {
			return checkPostgresURL(address)
		}
	}
	return nil
}
