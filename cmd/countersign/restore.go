package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/google/uuid"

	"countersign/internal/keyring"
	"countersign/internal/service"
	"countersign/internal/store/sqlite"
	"countersign/internal/verify"
)

type restoreCommand struct {
	storage
	File    string `arg:"" optional:"" help:"Backup that countersign backup has made." type:"path"`
	InPlace bool   `help:"Take the database as it is for the restored one, after PostgreSQL's own tools have restored it." env:"-"`
	Replace bool   `help:"Restore although there is a database; it is kept beside the new one." env:"-"`
	NoAudit bool   `help:"Do not audit the backup first." env:"-"`
	Yes     bool   `help:"Do not ask." short:"y" env:"-"`
	JSON    bool   `name:"json" help:"Print JSON." env:"-"`
}

// Help is shown below the flags.
func (restoreCommand) Help() string {
	return `Stop every server first. The restored ledger gets an id of its own, each organization's audit log says what was lost
by it, and the file of heads follows it.

Examples:
  countersign restore /backups/countersign-2026-11-16.db --replace
  countersign restore --in-place --database postgres://…     # after pg_restore`
}

// restoreAnswer is what restore prints.
type restoreAnswer struct {
	*service.Restoration
	File     string `json:"file,omitempty"`     // the backup
	Replaced string `json:"replaced,omitempty"` // where the database from before is kept
}

// Run puts a backup in place, or takes what is in place for one.
func (c *restoreCommand) Run(p *process) error {
	if (c.File == "") != c.InPlace {
		return misused(errors.New("name the backup, or give --in-place"))
	}
	if !c.embedded() && !c.InPlace {
		return unclear(errors.New("this store is in PostgreSQL: restore the database with pg_restore or psql, and then run countersign restore --in-place"))
	}
	heads, err := c.openHeadsAlone() // before anything else: without the keys a backup is of no use
	if err != nil {
		return unclear(err)
	}
	release, err := c.alone(p.ctx)
	if err != nil {
		return err
	}
	defer release()
	answer := &restoreAnswer{File: c.File}
	if c.InPlace {
		err = c.inPlace(p, heads, answer)
	} else {
		err = c.fromFile(p, heads, answer)
	}
	if err != nil {
		return err
	}
	if err := c.forgetChains(); err != nil {
		return fmt.Errorf("the database is restored, and what is remembered of its open chains does not say so: %w; then run countersign restore --in-place", err)
	}
	// A crash before this leaves a file that watches the ledger from before: no server
	// starts on it, and restore --in-place goes on from there.
	if err := heads.Replace(answer.Ledger, answer.Ends()); err != nil {
		return fmt.Errorf("the database is restored, and the file of heads does not say so: %w; then run countersign restore --in-place", err)
	}
	return c.print(p, answer)
}

// forgetChains gives up what is remembered of open chains: they are what the backup has of
// them.
func (c *restoreCommand) forgetChains() error {
	ring, err := keyring.Open(c.keyFile())
	if err != nil {
		return err
	}
	chains, err := keyring.OpenChains(keyring.ChainsFile(c.headsFile()), ring)
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

// alone makes sure that nobody serves the database meanwhile.
func (c *restoreCommand) alone(ctx context.Context) (release func(), err error) {
	if c.embedded() {
		return lockFolder(c.Data)
	}
	e := &examination{storage: &c.storage, now: time.Now}
	connections, err := e.replicas(ctx)
	if err == nil && connections > 0 {
		err = fmt.Errorf("%s of countersign to this database: stop every server and command first", count(connections, "connection"))
	}
	return func() {}, err
}

// inPlace is for a database that something else has restored.
func (c *restoreCommand) inPlace(p *process, heads *keyring.Heads, answer *restoreAnswer) (err error) {
	if err := c.checkExists(); err != nil {
		return unclear(err)
	}
	db, err := c.openStore(p.ctx)
	if err != nil {
		return unclear(err)
	}
	o, err := c.unwatched(p.ctx, db)
	if err != nil {
		return unclear(err)
	}
	defer func() { err = errors.Join(err, o.close()) }()
	if err := c.audit(p, o); err != nil {
		return err
	}
	if !c.Yes {
		if err := p.confirm("Give this database the id of a restored ledger?"); err != nil {
			return err
		}
	}
	return c.restore(p, o, heads, answer)
}

// unwatched puts the service on a store without what is remembered of another, and
// makes sure that the keys are the store's own. What it opens it closes on failure.
func (c *restoreCommand) unwatched(ctx context.Context, db migratingStore) (*opened, error) {
	o := &opened{store: db}
	var err error
	if o.ring, err = keyring.Open(c.keyFile()); err != nil {
		return nil, errors.Join(err, o.close())
	}
	c.start(o, service.Config{})
	if err := o.operator().AdoptKeys(ctx, knownKeys{o.ring}); err != nil {
		return nil, errors.Join(err, o.close())
	}
	if err := o.checkSealed(ctx); err != nil {
		return nil, errors.Join(err, o.close())
	}
	return o, nil
}

// fromFile works on a copy of the backup, and puts that in place when all is well.
func (c *restoreCommand) fromFile(p *process, heads *keyring.Heads, answer *restoreAnswer) (err error) {
	database := c.databaseFile()
	_, err = os.Lstat(database)
	exists := err == nil
	switch {
	case err != nil && !errors.Is(err, os.ErrNotExist):
		return unclear(err)
	case exists && !c.Replace:
		return unclear(fmt.Errorf("there is a database in %s: give --replace to restore all the same; it is kept beside the new one", c.Data))
	}
	copied, err := c.copy(p)
	if err != nil {
		return unclear(err)
	}
	defer func() {
		for _, path := range databaseFiles(copied) {
			_ = os.Remove(path) // it has another name by now, or is of no use
		}
	}()
	if err := c.prepare(p, copied, heads, answer); err != nil {
		return err
	}
	if exists {
		// What a server that was killed has left in the log is written into the database, so
		// that one file is the whole of it. Where that fails, the log goes with the database.
		if db, err := sqlite.Open(p.ctx, database); err == nil {
			_ = db.Close()
		}
		if answer.Replaced, err = putAside(database, time.Now()); err != nil {
			return fmt.Errorf("the database from before could not be put aside, and nothing was restored: %w", err)
		}
	}
	if err := errors.Join(os.Rename(copied, database), syncFolder(c.Data)); err != nil {
		return fmt.Errorf("the backup could not be put in place; the database from before is %s: %w", answer.Replaced, err)
	}
	return nil
}

// copy brings the backup into the data folder, where it can be renamed into place.
func (c *restoreCommand) copy(p *process) (path string, err error) {
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
		return "", fmt.Errorf("%s has a write-ahead log beside it: it is a database in use, and no backup; make one with countersign backup", c.File)
	}
	target, err := os.CreateTemp(c.Data, "restore-*.db") // mode 0600
	if err != nil {
		return "", err
	}
	bar := newProgress(p.errOutput, "copying (MiB)")
	defer bar.clear()
	_, err = io.Copy(target, &watchedReader{ctx: p.ctx, r: backup, total: info.Size(), show: bar.show})
	if err = errors.Join(err, target.Sync(), target.Close()); err != nil {
		return "", errors.Join(err, os.Remove(target.Name()))
	}
	return target.Name(), nil
}

// watchedReader shows how far it was read, and ends with its context.
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

// prepare checks a copy of the backup and makes of it a ledger of its own.
func (c *restoreCommand) prepare(p *process, path string, heads *keyring.Heads, answer *restoreAnswer) (err error) {
	db, err := sqlite.Open(p.ctx, path)
	if err != nil {
		return unclear(fmt.Errorf("%s is no backup of a database: %w", c.File, err))
	}
	current, latest, err := db.SchemaVersion(p.ctx)
	switch {
	case err != nil:
		err = fmt.Errorf("%s is no backup of a database: %w", c.File, err)
	case current == 0:
		err = fmt.Errorf("%s is no backup of a countersign database: it has no schema", c.File)
	case current > latest:
		err = checkSchema(current, latest)
	case current < latest:
		err = db.Migrate(p.ctx)
	}
	if err != nil {
		return unclear(errors.Join(err, db.Close()))
	}
	o, err := c.unwatched(p.ctx, db)
	if err != nil {
		return unclear(err)
	}
	if err = c.audit(p, o); err == nil {
		err = c.restore(p, o, heads, answer)
	}
	// Closing writes the log into the database: what is renamed is whole.
	return errors.Join(err, o.close())
}

// restore makes a ledger of its own.
func (c *restoreCommand) restore(p *process, o *opened, heads *keyring.Heads, answer *restoreAnswer) error {
	var err error
	answer.Restoration, err = o.operator().Restore(p.ctx, heads.Ledger(), heads.All())
	if err != nil && c.NoAudit && answer.Restoration != nil {
		p.say("%v", err)
		return nil
	}
	return err
}

// audit walks every ledger of the backup.
func (c *restoreCommand) audit(p *process, o *opened) error {
	if c.NoAudit {
		return nil
	}
	orgs, err := o.operator().Organizations(p.ctx)
	if err != nil {
		return unclear(err)
	}
	for _, org := range orgs {
		bar := newProgress(p.errOutput, "auditing "+quoted(org.Slug, maxSlug))
		report, err := o.operator().AuditOrganization(p.ctx, org, verify.AuditOptions{Progress: bar.show})
		bar.clear()
		if err != nil {
			return unclear(fmt.Errorf("the ledger of %s could not be read: %w", quoted(org.Slug, maxSlug), err))
		}
		if report.Break != nil {
			return fmt.Errorf("the ledger of %s is broken at %s: take another backup, or give --no-audit to restore it all the same; nothing was changed", quoted(org.Slug, maxSlug), breakText(report.Break))
		}
	}
	return nil
}

// databaseFiles are a database and what SQLite keeps beside it.
func databaseFiles(path string) []string { return []string{path, path + "-wal", path + "-shm"} }

// putAside gives a database another name, with what stands beside it.
func putAside(database string, now time.Time) (string, error) {
	aside := fmt.Sprintf("%s.replaced-%s", database, now.UTC().Format("20060102T150405.000Z"))
	for i, path := range databaseFiles(database) {
		err := os.Rename(path, databaseFiles(aside)[i])
		if err != nil && (i == 0 || !errors.Is(err, os.ErrNotExist)) {
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

// print says what was done, and what to tell whoever relies on the receipts.
func (c *restoreCommand) print(p *process, answer *restoreAnswer) error {
	if c.JSON {
		return p.printJSON(answer)
	}
	fmt.Fprintf(p.out, "this is the ledger %s%s\n", answer.Ledger, restoredFrom(answer.Parent))
	if answer.Replaced != "" {
		fmt.Fprintf(p.out, "the database from before is kept as %s\n", filepath.Clean(answer.Replaced))
	}
	for _, org := range answer.Organizations {
		fmt.Fprintln(p.out, restoredText(org))
	}
	p.say("%s", auditorsText(answer.Organizations))
	return nil
}

func restoredFrom(parent *uuid.UUID) string {
	if parent == nil {
		return ", restored from one without an id"
	}
	return fmt.Sprintf(", restored from the ledger %s", parent)
}

func restoredText(org service.RestoredOrganization) string {
	name := quoted(org.Organization, maxSlug)
	if org.Missing {
		return fmt.Sprintf("%s is not in this ledger: %s and %s of its audit log are lost", name, count(org.ReceiptsLost, "acknowledged receipt"), count(org.ActsLost, "act"))
	}
	text := fmt.Sprintf("%s goes on from %s and %s", name, count(org.Receipts, "receipt"), count(org.Acts, "act"))
	if org.ReceiptsLost > 0 {
		text += fmt.Sprintf("; acknowledged and not in this ledger: receipts %05d to %05d", org.Receipts+1, org.Receipts+org.ReceiptsLost)
	}
	if org.ActsLost > 0 {
		text += fmt.Sprintf("; lost from the audit log: acts %d to %d", org.Acts+1, org.Acts+org.ActsLost)
	}
	if org.Diverged {
		text += "; its last receipts or acts are others than were acknowledged"
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
