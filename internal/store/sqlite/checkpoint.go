package sqlite

import (
	"errors"
	"sync"

	"countersign/internal/store"
)

// checkpointer copies the write-ahead log into the database file in a goroutine of its
// own. SQLite would do it inside a commit, and every request that waits for that commit
// would wait for the copying too.
//
// The log stays below maxLog unless a snapshot is kept for long: scans renew theirs, so
// only a backup or another program can do that.
type checkpointer struct {
	store   *Store
	conn    *connection    // owned by the goroutine
	due     chan struct{}  // wakes the goroutine
	stopped sync.WaitGroup // the goroutine

	// Guarded by Store.mu.
	frames int64 // in the log, one page each
	next   int64 // frames at which the next checkpoint is due
}

const (
	frameSize = 4096 + 24 // bytes: SQLite's default page and the header of a frame

	maxLog = 64 << 20 // bytes

	// A checkpoint begins at dueFrames, and again retryFrames later when it could not
	// empty the log.
	dueFrames   = 20 << 20 / frameSize
	retryFrames = 4 << 20 / frameSize
	// Above blockingFrames the writer waits for the whole checkpoint, and not only for
	// its last part.
	blockingFrames = 36 << 20 / frameSize
	// remainderFrames is the last part: what may be left to copy while the writer waits.
	remainderFrames = 128
	// maxPasses limits the passes that run while the writer continues.
	maxPasses = 4
)

// checkpointPragmas let a checkpoint that restarts the log wait for readers (in
// milliseconds), and the writer with it, a little longer than maxSnapshot. SQLite
// truncates the log's file to journal_size_limit when the log restarts.
var checkpointPragmas = []string{"busy_timeout(400)", "cache_size(-500)"}

func startCheckpointer(s *Store) (*checkpointer, error) {
	conn, err := connect(s.path, checkpointPragmas...)
	if err != nil {
		return nil, err
	}
	c := &checkpointer{store: s, conn: conn, due: make(chan struct{}, 1), next: dueFrames}
	// Copy what an earlier process has left: a process that is killed again and again
	// never writes enough to reach a checkpoint. The first pass takes no lock that a
	// running server needs.
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

// committed counts the frames that a commit has added. The caller holds Store.mu.
func (c *checkpointer) committed(frames int64) {
	if c.frames += frames; c.frames < c.next {
		return
	}
	c.next = c.frames + retryFrames
	select {
	case c.due <- struct{}{}:
	default: // the goroutine was woken already
	}
}

// run makes one checkpoint. It copies while the writer continues until little is left,
// and copies the rest under Store.mu: the log can restart only when all of it has been
// copied and nobody reads it, and a log that never restarts grows without limit.
func (c *checkpointer) run() {
	for range maxPasses {
		logged, copied, err := c.pass("PASSIVE")
		if err != nil {
			return // nothing is lost: the log still has it, and the next checkpoint retries
		}
		if logged-copied <= remainderFrames || logged > blockingFrames {
			break
		}
	}
	c.store.mu.Lock()
	defer c.store.mu.Unlock()
	logged, _, err := c.pass("RESTART")
	if err != nil {
		return // as above
	}
	c.frames, c.next = logged, max(dueFrames, logged+retryFrames)
}

// pass copies what can be copied. It returns how many frames the log holds (0 after a
// restart) and how many of them have been copied.
func (c *checkpointer) pass(mode string) (logged, copied int64, err error) {
	err = c.conn.query("PRAGMA wal_checkpoint("+mode+")", nil, func(r row) error {
		var busy int64
		if err := r.Scan(&busy, &logged, &copied); err != nil {
			return err
		}
		if busy == 0 && mode != "PASSIVE" {
			logged, copied = 0, 0
		}
		return nil
	})
	return logged, copied, err
}

func (c *checkpointer) close() error {
	close(c.due)
	c.stopped.Wait()
	return c.conn.close()
}
