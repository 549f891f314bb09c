package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"countersign/internal/cli"
	"countersign/internal/keyring"
	"countersign/internal/store"
)

// watchInterval is how often the files are checked for changes. A stat call is cheap.
const watchInterval = time.Second

// catchHangups handles SIGHUP, which would otherwise end the program, also while it starts.
func catchHangups() (hangups chan os.Signal, release func()) {
	hangups = make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP)
	return hangups, func() { signal.Stop(hangups) }
}

// watch reloads the keys and the certificate when their files change, or at once on
// SIGHUP, until ctx ends. It also keeps the heads file up to date.
func (s *server) watch(ctx context.Context) {
	ticker := time.NewTicker(watchInterval)
	defer ticker.Stop()
	files := s.watched()
	for {
		asked := false
		select {
		case <-ctx.Done():
			return
		case <-s.hangups:
			asked = true
		case <-ticker.C:
		}
		for _, file := range files {
			file.check(ctx, s, asked)
		}
		s.keepHeads()
		s.keepChains()
	}
}

// checkRollback compares the database with what was acknowledged, before anything is
// served.
func (s *server) checkRollback() error {
	if err := s.checkHeads(); err != nil {
		return err
	}
	found, err := s.opened.Service.Rollbacks(s.process.Ctx)
	switch {
	case cli.AnyUnremembered(found):
		s.log.Error("the heads file knows none of the receipts in this database, and no new ones are sealed: run countersign heads import with an export from another machine, or countersign rollback accept", "ledgers", len(found))
	case len(found) > 0:
		s.log.Error("the database is older than the receipts that were acknowledged, and no new ones are sealed: run countersign doctor", "ledgers", len(found))
	}
	return err
}

// checkHeads reports at the start that the heads file cannot be written. This is an
// error only if the file was named with --heads: by default it is next to the keys, in
// a folder that may be read-only on purpose.
func (s *server) checkHeads() error {
	err := s.opened.Heads.Writable()
	if err != nil && s.command.Heads != "" {
		return fmt.Errorf("--heads: %w; name a file in an existing folder that this server may write to", err)
	}
	s.reportHeads(err)
	return nil
}

// keepHeads reloads the heads file, which an operator may have changed, and then writes
// what was acknowledged since. If it cannot be written, the server still serves.
func (s *server) keepHeads() {
	err := s.opened.Heads.Reload()
	if err == nil {
		err = s.opened.Heads.Flush()
	}
	if err == nil && s.files.known(&s.files.heads) {
		// There may have been nothing to write since the error.
		err = s.opened.Heads.Writable()
	}
	s.reportHeads(err)
}

// reportHeads logs a problem with the heads file, once.
func (s *server) reportHeads(err error) {
	if s.files.note(&s.files.heads, err) {
		s.log.Error("the heads file cannot be written: a restored older database would not be noticed; name a file that this server may write with --heads", "error", err)
	}
}

// watchedFile is something that was read from files and can be reloaded. The goroutine
// of watch owns it.
type watchedFile struct {
	name    string
	paths   []string
	reload  func(context.Context) error
	read    []stamp // of the files when they were read
	refused string  // why the last reload failed, so that it is logged once
	fault   *string // the error for the readiness check; nil if it has none
}

func (s *server) watched() []*watchedFile {
	files := []*watchedFile{{name: "signing keys", paths: []string{s.command.KeyFile()}, reload: s.reloadKeys, fault: &s.files.keys}}
	if s.certificate != nil {
		files = append(files, &watchedFile{
			name: "TLS certificate", paths: []string{s.command.TLSCert, s.command.TLSKey},
			reload: func(context.Context) error { return s.certificate.Reload() },
		})
	}
	return files
}

// check reloads the files if they have changed or if asked is set. A failed reload is
// retried each time.
func (f *watchedFile) check(ctx context.Context, s *server, asked bool) {
	now := stampsOf(f.paths)
	if !asked && sameStamps(now, f.read) {
		return
	}
	first := f.read == nil
	err := f.reload(ctx)
	if ctx.Err() != nil {
		return // the server stops, which is not the file's fault
	}
	if f.fault != nil && !errors.Is(err, store.ErrUnavailable) { // the database's fault, not the file's
		s.files.note(f.fault, err)
	}
	if err != nil {
		if asked || err.Error() != f.refused {
			s.log.Error("reload failed, keeping the old one: "+f.name, "error", err)
		}
		f.refused = err.Error()
		return
	}
	f.read, f.refused = now, ""
	if !first || asked {
		s.log.Info("reloaded: " + f.name)
	}
}

// reloadKeys picks up a key rotation. The store learns of a new key before anything is
// signed with it, so that it never holds signatures of a key that it does not require.
func (s *server) reloadKeys(ctx context.Context) error {
	fresh, err := keyring.Open(s.command.KeyFile())
	if err != nil {
		return err
	}
	if err := s.opened.Operator().AdoptKeys(ctx, fresh); err != nil {
		return err
	}
	return s.opened.Ring.Reload()
}

// stamp identifies a version of a file.
type stamp struct {
	modified time.Time
	size     int64
	mode     os.FileMode
	inode    uint64
	owner    uint32
}

func stampsOf(paths []string) []stamp {
	stamps := make([]stamp, len(paths))
	for i, path := range paths {
		info, err := os.Stat(path)
		if err != nil {
			continue
		}
		stamps[i] = stamp{modified: info.ModTime(), size: info.Size(), mode: info.Mode()}
		if status, ok := info.Sys().(*syscall.Stat_t); ok {
			stamps[i].inode, stamps[i].owner = status.Ino, status.Uid
		}
	}
	return stamps
}

func sameStamps(a, b []stamp) bool {
	return slices.EqualFunc(a, b, func(a, b stamp) bool {
		return a.modified.Equal(b.modified) && a.size == b.size && a.mode == b.mode && a.inode == b.inode && a.owner == b.owner
	})
}

// keepChains reloads the journal of open chains, which an operator may have changed, and
// then writes the progress of open chains. If it cannot, the server still serves.
func (s *server) keepChains() {
	err := s.opened.Chains.Reload()
	if err == nil {
		err = s.opened.Chains.Flush()
	}
	if s.files.note(&s.files.chains, err) {
		s.log.Warn("the journal of open chains cannot be written: a chain that is rolled back while this server is stopped would not be noticed", "error", err)
	}
}
