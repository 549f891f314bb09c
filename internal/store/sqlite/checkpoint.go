package sqlite

import (
	"errors"
	"sync"

	"countersign/internal/store"
)

// checkpointer moves the write-ahead log back into the database file beside the
// writer. SQLite would do it inside a commit, and everyone who waits for that
// commit would wait for the copying too.
//
// The log stays below maxLog as long as nobody keeps a view of the file for long:
// scans take turns, and a backup, or a foreign program, is all that can hold it.
type checkpointer struct {
	store   *Store
	conn    *connection
	due     chan struct{}
	stopped sync.WaitGroup

	// The log as it is counted, under the writer's lock.
	frames int64 // that it holds: a page each
	next   int64 // frames at which a checkpoint is due
}

const (
	frameSize = 4096 + 24 // bytes, with SQLite's own size of a page

	maxLog = 64 << 20 // bytes

	// dueFrames is how much of the log may be written before it is moved, and
	// againFrames how much more where it could not be moved or begun anew.
	dueFrames   = 20 << 20 / frameSize
	againFrames = 4 << 20 / frameSize
	// hastyFrames is how long the log may get before the writer has to wait for all of
	// the moving, and not for its end alone.
	hastyFrames = 36 << 20 / frameSize
	// remainderFrames is how much of the log may be left to be moved while the
	// writer is held up.
	remainderFrames = 128
	maxPasses       = 4
)

// checkpointPragmas make a checkpoint that restarts the log wait for readers, and the
// writer with it, for a little longer than a scan's turn takes. SQLite cuts the file to
// the limit whenever the log starts from its beginning again.
var checkpointPragmas = []string{"busy_timeout(400)", "cache_size(-500)"}

func startCheckpointer(s *Store) (*checkpointer, error) {
	conn, err := connect(s.path, checkpointPragmas...)
	if err != nil {
		return nil, err
	}
	c := &checkpointer{store: s, conn: conn, due: make(chan struct{}, 1), next: dueFrames}
	// What a process before this one has left behind: one that is killed again and again
	// never writes enough to come to a checkpoint of its own. A server that runs beside
	// this process is not held up: the first pass needs none of its locks.
	if _, _, err = c.pass("PASSIVE"); err == nil {
		_, _, err = c.pass("TRUNCATE")
	}
	if err != nil && !errors.Is(classify(err), store.ErrUnavailable) {
		return nil, errors.Join(err, conn.close())
	}
	c.stopped.Go(func() {
		for range c.due {
			c.run()
		}
	})
	return c, nil
}

// notice is told how many frames each commit has added, under the writer's lock.
func (c *checkpointer) notice(frames int64) {
	if c.frames += frames; c.frames < c.next {
		return
	}
	c.next = c.frames + againFrames
	select {
	case c.due <- struct{}{}:
	default: // one is due already
	}
}

// run copies while the writer goes on, until little is left, and the rest while
// it waits: only when all of the log has been moved, and nobody reads it, can it start
// from the beginning again, and a log that never does grows for ever.
func (c *checkpointer) run() {
	for range maxPasses {
		logged, moved, err := c.pass("PASSIVE")
		if err != nil {
			return // nothing is lost: the log keeps it, and the next one tries again
		}
		if logged-moved <= remainderFrames || logged > hastyFrames {
			break
		}
	}
	c.store.mu.Lock()
	defer c.store.mu.Unlock()
	logged, _, err := c.pass("RESTART")
	if err != nil {
		return // as above
	}
	c.frames, c.next = logged, max(dueFrames, logged+againFrames)
}

// pass moves what can be moved. It returns how many frames the log holds, none where it
// starts from the beginning again, and how many of them were moved.
func (c *checkpointer) pass(mode string) (logged, moved int64, err error) {
	err = c.conn.query("PRAGMA wal_checkpoint("+mode+")", nil, func(r row) error {
		var busy int64
		if err := r.Scan(&busy, &logged, &moved); err != nil {
			return err
		}
		if busy == 0 && mode != "PASSIVE" {
			logged, moved = 0, 0
		}
		return nil
	})
	return logged, moved, err
}

func (c *checkpointer) close() error {
	close(c.due)
	c.stopped.Wait()
	return c.conn.close()
}
