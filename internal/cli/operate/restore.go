package operate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/google/uuid"

	"countersign/internal/cli"
	"countersign/internal/keyring"
	"countersign/internal/service"
	"countersign/internal/verify"
)

// RestoreCommand is the restore command.
type RestoreCommand struct {
	cli.Storage
	File    string `arg:"" optional:"" help:"Backup file written by countersign backup." type:"path"`
	InPlace bool   `help:"Accept the current database as the restored one, after PostgreSQL's own tools have restored it." env:"-"`
	Replace bool   `help:"Restore even if there is a database; it is kept next to the new one." env:"-"`
	NoAudit bool   `help:"Do not audit the backup first." env:"-"`
	Yes     bool   `help:"Do not ask for confirmation." short:"y" env:"-"`
	JSON    bool   `name:"json" help:"Print JSON." env:"-"`
}

// Help is shown below the flags.
func (RestoreCommand) Help() string {
	return `Stop every server first. The restored ledger gets a new id, each organization's audit log records what was
lost, and the heads file is updated.

Examples:
  countersign restore /backups/countersign-2026-11-16.db --replace
  COUNTERSIGN_DATABASE=postgres://… countersign restore --in-place     # after pg_restore`
}

// RestoreAnswer is what restore prints.
type RestoreAnswer struct {
	*service.Restoration
	File     string `json:"file,omitempty"`     // path of the backup
	Replaced string `json:"replaced,omitempty"` // path of the previous database
}

// Run restores a backup, or accepts a database that was restored by other tools.
func (c *RestoreCommand) Run(p *cli.Process) error {
	if (c.File == "") != c.InPlace {
		return cli.Usage(errors.New("name the backup, or give --in-place"))
	}
	if !c.Embedded() && !c.InPlace {
		return cli.Inconclusive(errors.New("this store is in PostgreSQL: restore the database with pg_restore or psql, and then run countersign restore --in-place"))
	}
	heads, err := c.OpenHeads() // first, because a backup is useless without the keys
	if err != nil {
		return err
	}
	release, err := c.alone(p)
	if err != nil {
		return err
	}
	defer release()
	answer := &RestoreAnswer{File: c.File}
	if c.InPlace {
		err = c.inPlace(p, heads, answer)
	} else {
		err = c.fromFile(p, heads, answer)
	}
	if err != nil {
		return err
	}
	if err := errors.Join(c.forgetChains(), c.endLogs()); err != nil {
		return fmt.Errorf("the database is restored, but the records of open chains and logs could not be updated: %w; fix this and run countersign restore --in-place", err)
	}
	// After a crash before this point, the heads file still watches the previous ledger. No server
	// starts with it, and restore --in-place continues from here.
	if err := heads.Replace(answer.Ledger, answer.Ends()); err != nil {
		return fmt.Errorf("the database is restored, but the heads file could not be updated: %w; fix this and run countersign restore --in-place", err)
	}
	return c.print(p, answer)
}

// forgetChains drops the records of open chains, because the backup may have older states of them.
func (c *RestoreCommand) forgetChains() error {
	ring, err := keyring.Open(c.KeyFile())
	if err != nil {
		return err
	}
	chains, err := keyring.OpenChains(keyring.ChainsFile(c.HeadsFile()), ring)
	if err != nil {
		return err
	}
	forgotten := make(map[uuid.UUID]bool)
	for _, chain := range chains.All() {
		if org := chain.Org; !forgotten[org] {
			forgotten[org] = true
			if err := chains.Accept(org); err != nil {
				return err
			}
		}
	}
	return chains.Close()
}

// endLogs marks the previous logs as never to be signed again.
func (c *RestoreCommand) endLogs() error {
	ring, err := keyring.Open(c.KeyFile())
	if err != nil {
		return err
	}
	marks, err := keyring.OpenLogMarks(keyring.LogMarksFile(c.HeadsFile()), ring)
	if err != nil {
		return err
	}
	return marks.EndAll()
}

// alone makes sure that no server uses the database at the same time.
func (c *RestoreCommand) alone(p *cli.Process) (release func(), err error) {
	if c.Embedded() {
		return cli.LockFolder(c.Data)
	}
	connections, err := p.Databases.PostgresConnections(p.Ctx, c.Database)
	if err == nil && connections > 0 {
		err = fmt.Errorf("%s of countersign to this database: stop every server and command first", cli.Count(connections, "connection"))
	}
	return func() {}, err
}

// inPlace handles a database that another tool has restored.
func (c *RestoreCommand) inPlace(p *cli.Process, heads *keyring.Heads, answer *RestoreAnswer) (err error) {
	db, err := c.OpenStore(p)
	if err != nil {
		return err
	}
	o, err := c.OpenUnwatched(p, db)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, o.Close()) }()
	if err := c.audit(p, o); err != nil {
		return err
	}
	if !c.Yes {
		if err := p.Confirm("Give this database the id of a restored ledger?"); err != nil {
			return err
		}
	}
	return c.restore(p, o, heads, answer)
}

// fromFile works on a copy of the backup, and moves it into place if everything succeeds.
func (c *RestoreCommand) fromFile(p *cli.Process, heads *keyring.Heads, answer *RestoreAnswer) (err error) {
	database := c.DatabaseFile()
	_, err = os.Lstat(database)
	exists := err == nil
	switch {
	case err != nil && !errors.Is(err, os.ErrNotExist):
		return cli.Inconclusive(err)
	case exists && !c.Replace:
		return cli.Inconclusive(fmt.Errorf("there is already a database in %s: give --replace to restore anyway; it is kept next to the new one", c.Data))
	}
	copied, err := c.copy(p)
	if err != nil {
		return cli.Inconclusive(err)
	}
	defer func() {
		for _, path := range databaseFiles(copied) {
			_ = os.Remove(path) // it was renamed, or is useless
		}
	}()
	if err := c.prepare(p, copied, heads, answer); err != nil {
		return err
	}
	if exists {
		// Opening the database recovers what a killed server left in the write-ahead log, so that
		// one file contains everything. If that fails, the log is moved along with the database.
		if db, err := p.Databases.OpenSQLite(p.Ctx, database); err == nil {
			_ = db.Close()
		}
	}
	// A log can be left without its database. SQLite would replay it into the restored one.
	aside, err := putAside(database, time.Now())
	if err != nil {
		return fmt.Errorf("the previous database could not be moved, and nothing was restored: %w", err)
	}
	if exists {
		answer.Replaced = aside
	}
	if err := errors.Join(os.Rename(copied, database), syncFolder(c.Data)); err != nil {
		return fmt.Errorf("the backup could not be moved into place; the previous database is %s: %w", answer.Replaced, err)
	}
	return nil
}

// copy copies the backup into the data folder, from where it can be renamed into place.
func (c *RestoreCommand) copy(p *cli.Process) (path string, err error) {
	backup, err := os.Open(c.File)
	if err != nil {
		return "", err
	}
	defer backup.Close()
	info, err := backup.Stat()
	if err != nil {
		return "", err
	}
	if !info.Mode().IsRegular() {
		return "", fmt.Errorf("%s is not a file", c.File)
	}
	if log, err := os.Stat(c.File + "-wal"); err == nil && log.Size() > 0 {
		return "", fmt.Errorf("%s has a write-ahead log next to it, so it is a database in use and not a backup; create one with countersign backup", c.File)
	}
	target, err := os.CreateTemp(c.Data, "restore-*.db") // mode 0600
	if err != nil {
		return "", err
	}
	bar := cli.NewProgress(p.Err, "copying (MiB)")
	defer bar.Clear()
	_, err = io.Copy(target, &watchedReader{ctx: p.Ctx, r: backup, total: info.Size(), show: bar.Show})
	if err = errors.Join(err, keyring.GiveToOwner(target, c.DatabaseFile()), target.Sync(), target.Close()); err != nil {
		return "", errors.Join(err, os.Remove(target.Name()))
	}
	return target.Name(), nil
}

// watchedReader reports its progress, and fails when its context ends.
type watchedReader struct {
	ctx         context.Context
	r           io.Reader
	done, total int64
	show        func(done, total int64)
}

func (w *watchedReader) Read(b []byte) (int, error) {
	if err := w.ctx.Err(); err != nil {
		return 0, err
	}
	n, err := w.r.Read(b)
	w.done += int64(n)
	w.show(w.done>>20, w.total>>20)
	return n, err
}

// prepare checks a copy of the backup and turns it into a separate ledger.
func (c *RestoreCommand) prepare(p *cli.Process, path string, heads *keyring.Heads, answer *RestoreAnswer) (err error) {
	db, err := p.Databases.OpenSQLite(p.Ctx, path)
	if err != nil {
		return cli.Inconclusive(fmt.Errorf("%s is not a backup of a database: %w", c.File, err))
	}
	current, latest, err := db.SchemaVersion(p.Ctx)
	switch {
	case err != nil:
		err = fmt.Errorf("%s is not a backup of a database: %w", c.File, err)
	case current == 0:
		err = fmt.Errorf("%s is not a backup of a countersign database: it has no schema", c.File)
	case current > latest:
		err = cli.CheckSchema(current, latest)
	case current < latest:
		err = db.Migrate(p.Ctx)
	}
	if err != nil {
		return cli.Inconclusive(errors.Join(err, db.Close()))
	}
	o, err := c.OpenUnwatched(p, db)
	if err != nil {
		return err
	}
	if err = c.audit(p, o); err == nil {
		err = c.restore(p, o, heads, answer)
	}
	// Closing checkpoints the write-ahead log, so that the renamed file is complete.
	return errors.Join(err, o.Close())
}

// restore gives the ledger a new identity. The marks of the logs come into play only here: for the
// audit, a log that began after the backup was made would be one that was deleted from it.
func (c *RestoreCommand) restore(p *cli.Process, o *cli.Opened, heads *keyring.Heads, answer *RestoreAnswer) error {
	if err := c.WatchLogs(o); err != nil {
		return err
	}
	var err error
	answer.Restoration, err = o.Operator().Restore(p.Ctx, heads.Ledger(), heads.All())
	if err != nil && c.NoAudit && answer.Restoration != nil {
		p.Notef("%v", err)
		return nil
	}
	return err
}

// audit audits every organization in the backup.
func (c *RestoreCommand) audit(p *cli.Process, o *cli.Opened) error {
	if c.NoAudit {
		return nil
	}
	orgs, err := o.Operator().Organizations(p.Ctx)
	if err != nil {
		return cli.Inconclusive(err)
	}
	for _, org := range orgs {
		bar := cli.NewProgress(p.Err, "auditing "+cli.Quoted(org.Slug, cli.MaxSlug))
		report, err := o.Operator().AuditOrganization(p.Ctx, org, verify.AuditOptions{Progress: bar.Show})
		bar.Clear()
		if err != nil {
			return cli.Inconclusive(fmt.Errorf("the ledger of %s could not be read: %w", cli.Quoted(org.Slug, cli.MaxSlug), err))
		}
		if report.Break != nil {
			return fmt.Errorf("the ledger of %s is broken at %s: use another backup, or give --no-audit to restore it anyway; nothing was changed", cli.Quoted(org.Slug, cli.MaxSlug), breakText(report.Break))
		}
	}
	return nil
}

// databaseFiles returns the files of an SQLite database.
func databaseFiles(path string) []string { return []string{path, path + "-wal", path + "-shm"} }

// putAside renames the files of a database that exist.
func putAside(database string, now time.Time) (string, error) {
	aside := fmt.Sprintf("%s.replaced-%s", database, now.UTC().Format("20060102T150405.000Z"))
	for i, path := range databaseFiles(database) {
		err := os.Rename(path, databaseFiles(aside)[i])
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return "", err
		}
	}
	return aside, nil
}

// syncFolder makes renames durable.
func syncFolder(path string) error {
	folder, err := os.Open(path) //nolint:gosec // the operator names the folder
	if err != nil {
		return err
	}
	return errors.Join(folder.Sync(), folder.Close())
}

// print says what was done, and what to tell those who rely on the receipts.
func (c *RestoreCommand) print(p *cli.Process, answer *RestoreAnswer) error {
	if c.JSON {
		return p.PrintJSON(answer)
	}
	fmt.Fprintf(p.Out, "this is the ledger %s%s\n", answer.Ledger, restoredFrom(answer.Parent))
	if answer.Replaced != "" {
		fmt.Fprintf(p.Out, "the previous database is kept as %s\n", filepath.Clean(answer.Replaced))
	}
	for _, org := range answer.Organizations {
		fmt.Fprintln(p.Out, restoredText(org))
	}
	p.Notef("%s", auditorsText(answer.Organizations))
	return nil
}

func restoredFrom(parent *uuid.UUID) string {
	if parent == nil {
		return ", restored from a ledger without an id"
	}
	return fmt.Sprintf(", restored from the ledger %s", parent)
}

func restoredText(org service.RestoredOrganization) string {
	name := cli.Quoted(org.Organization, cli.MaxSlug)
	if org.Missing {
		return fmt.Sprintf("%s is not in this ledger: %s and %s of its audit log are lost", name, cli.Count(org.ReceiptsLost, "acknowledged receipt"), cli.Count(org.ActsLost, "act"))
	}
	text := fmt.Sprintf("%s continues from %s and %s", name, cli.Count(org.Receipts, "receipt"), cli.Count(org.Acts, "act"))
	if org.ReceiptsLost > 0 {
		text += fmt.Sprintf("; acknowledged and not in this ledger: receipts %05d to %05d", org.Receipts+1, org.Receipts+org.ReceiptsLost)
	}
	if org.ActsLost > 0 {
		text += fmt.Sprintf("; lost from the audit log: acts %d to %d", org.Acts+1, org.Acts+org.ActsLost)
	}
	if org.Diverged {
		text += "; its last receipts or acts differ from those that were acknowledged"
	}
	return text
}

// auditorsText is what the operator has to pass on.
func auditorsText(orgs []service.RestoredOrganization) string {
	for _, org := range orgs {
		if org.ReceiptsLost > 0 || org.Diverged {
			return "Tell your auditors the id of this ledger, that of its parent, and the receipts that are lost: their holders have genuine copies that do not verify here, and new receipts will bear the same numbers."
		}
	}
	return "No acknowledged receipt is known to be lost. Tell your auditors the id of this ledger and that of its parent."
}
