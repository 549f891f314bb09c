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

	"countersign/internal/keyring"
	"countersign/internal/store"
)

// watchInterval is how soon a changed file is noticed. Asking for a file's time
// costs nothing beside what a request does.
const watchInterval = time.Second

// catchHangups takes SIGHUP away from the system, which would end the program.
func catchHangups() (hangups chan os.Signal, release func()) {
	hangups = make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP)
	return hangups, func() { signal.Stop(hangups) }
}

// watch reads the keys and the certificate again when their files change, or at
// once on SIGHUP, until ctx ends.
func (s *server) watch(ctx context.Context, hangups <-chan os.Signal) {
	ticker := time.NewTicker(watchInterval)
	defer ticker.Stop()
	files := s.watched()
	for {
		asked := false
		select {
		case <-ctx.Done():
			return
		case <-hangups:
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

// lookBack holds the database against what was acknowledged before anything is
// served.
func (s *server) lookBack() error {
	if err := s.checkHeads(); err != nil {
		return err
	}
	found, err := s.opened.service.Rollbacks(s.process.ctx)
	switch {
	case unrememberedIn(found):
		s.log.Error("nothing is remembered of the receipts in this database, and it takes no new ones: run countersign heads import with what another machine remembers, or countersign rollback accept", "ledgers", len(found))
	case len(found) > 0:
		s.log.Error("the database is older than the receipts that were given out, and takes no new ones: run countersign doctor", "ledgers", len(found))
	}
	return err
}

// checkHeads says at once where what is acknowledged could not be remembered. A file
// that was named is wanted; without one, a folder of keys that only root may write to
// is no reason not to serve.
func (s *server) checkHeads() error {
	err := s.opened.heads.Writable()
	if err != nil && s.command.Heads != "" {
		return fmt.Errorf("--heads: %w; name a file in a folder that is there and that this server may write to", err)
	}
	s.reportHeads(err)
	return nil
}

// keepHeads takes up what an operator has accepted, and then writes down what was
// acknowledged since. A server whose folder cannot be written serves all the same.
func (s *server) keepHeads() {
	err := s.opened.heads.Reload()
	if err == nil {
		err = s.opened.heads.Flush()
	}
	if err == nil && s.files.known(&s.files.heads) {
		// Nothing may have been noted since, and so nothing written.
		err = s.opened.heads.Writable()
	}
	s.reportHeads(err)
}

// reportHeads says what is wrong with the file of heads, once.
func (s *server) reportHeads(err error) {
	if s.files.note(&s.files.heads, err) {
		s.log.Error("what is acknowledged cannot be remembered outside the database: a database that is put back would not be noticed; name a file that this server may write with --heads", "error", err)
	}
}

// watchedFile is something that was read from files and can be read again.
type watchedFile struct {
	name    string
	paths   []string
	reload  func(context.Context) error
	read    []stamp // of the files when they were read
	refused string  // why the last reading failed, so that the log says it once
	fault   *string // where the readiness finds that; nil where it does not
}

func (s *server) watched() []*watchedFile {
	files := []*watchedFile{{name: "signing keys", paths: []string{s.command.keyFile()}, reload: s.reloadKeys, fault: &s.files.keys}}
	if s.certificate != nil {
		files = append(files, &watchedFile{
			name: "TLS certificate", paths: []string{s.command.TLSCert, s.command.TLSKey},
			reload: func(context.Context) error { return s.certificate.reload() },
		})
	}
	return files
}

// check reads the files again when they are not those that were read, or when
// asked. A reading that failed is tried again each time.
func (f *watchedFile) check(ctx context.Context, s *server, asked bool) {
	now := stampsOf(f.paths)
	if !asked && sameStamps(now, f.read) {
		return
	}
	first := f.read == nil
	err := f.reload(ctx)
	if f.fault != nil && !errors.Is(err, store.ErrUnavailable) { // else it is not the file's fault
		s.files.note(f.fault, err)
	}
	if err != nil {
		if asked || err.Error() != f.refused {
			s.log.Error("could not read again, going on as before: "+f.name, "error", err)
		}
		f.refused = err.Error()
		return
	}
	f.read, f.refused = now, ""
	if !first || asked {
		s.log.Info("read again: " + f.name)
	}
}

// reloadKeys takes up a rotation. The store learns of a new key before anything
// is signed under it: a store must never hold signatures of a key that it would
// not ask for.
func (s *server) reloadKeys(ctx context.Context) error {
	fresh, err := keyring.Open(s.command.keyFile())
	if err != nil {
		return err
	}
	if err := s.opened.operator().AdoptKeys(ctx, fresh); err != nil {
		return err
	}
	return s.opened.ring.Reload()
}

// stamp tells whether a file is still the one that was read.
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
