package doctor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"countersign/internal/cli"
	"countersign/internal/ledger"
	"countersign/internal/service"

	"github.com/google/uuid"
)

// minSQLite is the oldest acceptable version. In earlier ones, a write-ahead log could be reset
// while it was being read.
var minSQLite = []int{3, 51, 3}

func (e *examination) sqliteVersion(ctx context.Context) finding {
	version, err := e.process.Databases.SQLiteVersion(ctx)
	if err != nil {
		return failed("%v", err)
	}
	if !atLeast(version, minSQLite) {
		return failed("SQLite %s can lose data; 3.51.3 or later is required: use a newer build of countersign", version)
	}
	return ok("%s", version)
}

func atLeast(version string, least []int) bool {
	parts := strings.Split(version, ".")
	for i, want := range least {
		if i >= len(parts) {
			return false
		}
		have, err := strconv.Atoi(parts[i])
		if err != nil || have < want {
			return false
		}
		if have > want {
			return true
		}
	}
	return true
}

func (e *examination) integrity(ctx context.Context) finding {
	if e.storage.CheckExists() != nil {
		return e.skipMissing()
	}
	verdict, err := e.process.Databases.SQLiteQuickCheck(ctx, e.storage.DatabaseFile())
	if err != nil {
		return failed("it could not be checked: %v", err)
	}
	if verdict != "ok" {
		return failed("%s: restore a backup", verdict)
	}
	return ok("quick check passed; countersign audit checks the evidence")
}

// withStore calls use with the store, opened like a command.
func (e *examination) withStore(use func(cli.Database) finding) finding {
	if e.storage.CheckExists() != nil {
		return e.skipMissing()
	}
	db, err := e.storage.Open(e.process)
	if err != nil {
		return failed("%v", err)
	}
	defer db.Close()
	return use(db)
}

func (e *examination) schema(ctx context.Context) finding {
	if e.noFolder() {
		return e.skipMissing()
	}
	if err := e.storage.CheckExists(); err != nil {
		return failed("%v", err)
	}
	return e.withStore(func(db cli.Database) finding {
		current, latest, err := db.SchemaVersion(ctx)
		if err == nil {
			err = cli.CheckSchema(current, latest)
		}
		if err != nil {
			return failed("%v", err)
		}
		return ok("version %d", current)
	})
}

func (e *examination) keysBelong(context.Context) finding {
	if e.storage.CheckExists() != nil {
		return e.skipMissing()
	}
	o, err := e.storage.OpenForReading(e.process)
	var heads *cli.HeadsError
	if err != nil && !errors.As(err, &heads) {
		return failed("%v", err)
	}
	if o != nil {
		defer o.Close()
	}
	return ok("every key that has signed here is in the key file")
}

// ledger reports the ledger's identity.
func (e *examination) ledger(ctx context.Context) finding {
	return e.opened(func(o *cli.Opened) finding { return ledgerFinding(ctx, o) })
}

// opened calls examine if the store exists and can be opened.
func (e *examination) opened(examine func(*cli.Opened) finding) finding {
	if e.storage.CheckExists() != nil {
		return e.skipMissing()
	}
	o, err := e.storage.OpenForReading(e.process)
	if err != nil {
		return skipped("the store cannot be opened")
	}
	defer o.Close()
	return examine(o)
}

func ledgerFinding(ctx context.Context, o *cli.Opened) finding {
	stored, err := o.Ledger(ctx)
	switch {
	case err != nil:
		return failed("%v", err)
	case stored == nil:
		return warning("it has no id yet: a server assigns one, or countersign rollback accept if the heads file knows nothing of its receipts")
	}
	return ok("%s", stored)
}

// rollback compares the database with what was acknowledged.
func (e *examination) rollback(ctx context.Context) finding {
	if e.storage.CheckExists() != nil {
		return e.skipMissing()
	}
	o, err := e.storage.OpenForReading(e.process)
	var heads *cli.HeadsError
	switch {
	case errors.As(err, &heads):
		return failed("%v", heads)
	case err != nil:
		return skipped("the store cannot be opened")
	}
	defer o.Close()
	found, err := o.Service.Rollbacks(ctx)
	if err != nil {
		return failed("%v", err)
	}
	if len(found) > 0 {
		return failed("%s: %s", cli.RollbackTexts(found), cli.RollbackRemedy(found))
	}
	chains, err := o.Service.ChainRollbacks(ctx)
	if err != nil {
		return failed("%v", err)
	}
	if len(chains) > 0 {
		return failed("%s: find the newer database, or, if this one was restored on purpose, run countersign rollback accept", cli.ChainTexts(chains))
	}
	return e.watching(len(o.Heads.All()))
}

// tampering counts the findings that nobody has acknowledged.
func (e *examination) tampering(ctx context.Context) finding {
	return e.opened(func(o *cli.Opened) finding { return tamperingFinding(ctx, o) })
}

func tamperingFinding(ctx context.Context, o *cli.Opened) finding {
	findings, err := o.Operator().Findings(ctx, "")
	if err != nil {
		return failed("%v", err)
	}
	open, acknowledged := 0, 0
	for _, found := range findings {
		if found.Open() {
			open++
		} else {
			acknowledged++
		}
	}
	switch {
	case open > 0:
		return failed("%s not acknowledged: countersign tampering list lists them", cli.Count(open, "finding"))
	case acknowledged > 0:
		return ok("%s acknowledged, none open", cli.Count(acknowledged, "finding"))
	}
	return ok("none is known; run countersign audit to look for it")
}

// policies looks for sets in force that would be refused today.
func (e *examination) policies(ctx context.Context) finding {
	return e.opened(func(o *cli.Opened) finding { return policiesFinding(ctx, o) })
}

func policiesFinding(ctx context.Context, o *cli.Opened) finding {
	slow, err := o.Operator().SlowPolicies(ctx)
	if err != nil {
		return failed("%v", err)
	}
	if len(slow) == 0 {
		return ok("every set in force is within the limits")
	}
	var texts []string
	for _, found := range slow {
		texts = append(texts, fmt.Sprintf("%s (%s)", found.Organization, strings.Join(found.Rules, ", ")))
	}
	const shown = 10
	if more := len(texts) - shown; more > 0 {
		texts = append(texts[:shown], fmt.Sprintf("and %d more", more))
	}
	return warning("rules that read the chain exceed the current cost limit, and they delay every request: %s; "+
		"combine conditions on the payload with &&, and put the set again", strings.Join(texts, ", "))
}

// watching reports whether a rollback would be noticed. It changes nothing.
func (e *examination) watching(organizations int) finding {
	const writable = 2 // W_OK of access(2)
	path := e.storage.HeadsFile()
	if info, err := os.Lstat(path); err == nil && info.Mode()&os.ModeSymlink != 0 {
		return warning("%s is a symbolic link, which no server writes, so a rollback of the database would not be noticed: put the file itself there, or name it with --heads", path)
	}
	if err := syscall.Access(filepath.Dir(path), writable); err != nil {
		return warning("%s cannot be written (%v), so a rollback of the database would not be noticed: let the server write there, or name another file with --heads", path, err)
	}
	if organizations == 0 {
		return ok("%s does not record any receipt yet", path)
	}
	return ok("the database has everything that was acknowledged")
}

// escalation looks for organizations in which an escalation would notify nobody. It knows about
// e-mail and Slack only from the flags and variables of this command.
func (e *examination) escalation(ctx context.Context) finding {
	if e.storage.CheckExists() != nil {
		return e.skipMissing()
	}
	mailer, err := e.mail.Mailer()
	if err != nil {
		return failed("%v", err)
	}
	app, err := e.slackApp.Slack()
	if err != nil {
		return skipped("the flags of Slack are wrong, see below")
	}
	o, err := e.storage.OpenForReading(e.process)
	if err != nil {
		return skipped("the store cannot be opened with its keys")
	}
	defer o.Close()
	without, organizations, err := o.Operator().EscalationsWithoutRecipient(ctx, mailer != nil, app != nil)
	if err != nil {
		return failed("%v", err)
	}
	if len(without) == 0 {
		return ok("somebody is notified in all of %s", cli.Count(organizations, "organization"))
	}
	return warning("%s", noRecipientText(without))
}

// noRecipientText names the first few organizations, because there may be many.
func noRecipientText(without []*service.NoRecipient) string {
	const most = 3
	var b strings.Builder
	for i, u := range without[:min(len(without), most)] {
		if i > 0 {
			b.WriteString("; ")
		}
		fmt.Fprintf(&b, "in %s nobody is notified when an approval escalates, as %s: %s", cli.Quoted(u.Slug, cli.MaxSlug), u.Why(), u.Remedy())
	}
	if more := len(without) - most; more > 0 {
		fmt.Fprintf(&b, "; and likewise in %d more", more)
	}
	return b.String() + " (give this command the server's flags or variables, so that it knows of the mail server and of Slack)"
}

// earliestClock is when this program was written. An earlier clock is wrong.
var earliestClock = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

const clockTolerance = time.Minute

// clock compares the machine's time with the newest record. A record from the future means that the
// clock is or was wrong.
func (e *examination) clock(ctx context.Context) finding {
	now := e.now()
	if now.Before(earliestClock) {
		return failed("this machine's clock says %s: set it", now.UTC().Format(time.RFC3339))
	}
	if e.storage.CheckExists() != nil {
		return ok("%s; no records were compared with it", now.UTC().Format(time.RFC3339))
	}
	return e.withStore(func(db cli.Database) finding {
		newest, err := newestRecord(ctx, db)
		if err != nil {
			return skipped("the newest record could not be read: %v", err)
		}
		if newest.Std().After(now.Add(clockTolerance)) {
			return failed("the newest record is from %s, which is in the future: set this machine's clock", newest)
		}
		return ok("%s", now.UTC().Format(time.RFC3339))
	})
}

func newestRecord(ctx context.Context, db cli.Database) (ledger.Time, error) {
	orgs, err := db.Organizations(ctx)
	if err != nil {
		return 0, err
	}
	var newest ledger.Time
	for _, org := range orgs {
		newest = ledger.Later(newest, org.CreatedAt)
		receipts, err := db.Receipts(ctx, org.ID, 0, 1)
		if err != nil {
			return 0, err
		}
		for _, receipt := range receipts {
			made, err := ledger.ParseTime(ledger.CheckReceipt(receipt, org.Slug, noKeys{}).GeneratedAt)
			if err != nil {
				return 0, fmt.Errorf("receipt %d of %s: %w", receipt.Sequence, cli.Quoted(org.Slug, cli.MaxSlug), err)
			}
			newest = ledger.Later(newest, made)
		}
	}
	return newest, nil
}

// noKeys is for reading what a receipt claims without verifying it.
type noKeys struct{}

func (noKeys) CurrentKey() string { return "" }

func (noKeys) MAC(string, uuid.UUID, ledger.Purpose, ...[]byte) (mac [32]byte, ok bool) {
	return mac, false
}
