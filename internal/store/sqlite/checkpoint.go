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

	frameSize int64 // bytes: a page of this file and the header of a frame

	// Guarded by Store.mu, in bytes.
	logged int64 // what the log holds
	next   int64 // what it holds when the next checkpoint is due
}

// Sizes of the log, in bytes.
const (
	maxLog = 64 << 20

	// A checkpoint begins at dueLog, and again retryLog later when it could not empty the
	// log.
	dueLog   = 20 << 20
	retryLog = 4 << 20
	// Above blockingLog the writer waits for the whole checkpoint, and not only for its
	// last part.
	blockingLog = 36 << 20
	// remainderLog is the last part: what may be left to copy while the writer waits.
	remainderLog = 512 << 10
)

// maxPasses limits the passes that run while the writer continues.
const maxPasses = 4

// frameHeader is the size of a frame without its page, in bytes.
const frameHeader = 24

// checkpointPragmas let a checkpoint that restarts the log wait for readers (in
// milliseconds), and the writer with it, a little longer than maxSnapshot. SQLite
// truncates the log's file to journal_size_limit when the log restarts.
var checkpointPragmas = []string{"busy_timeout(400)", "cache_size(-500)"}

func startCheckpointer(s *Store) (*checkpointer, error) {
	conn, err := connect(s.path, checkpointPragmas...)
	if err != nil {
		return nil, err
	}
	c := &checkpointer{store: s, conn: conn, due: make(chan struct{}, 1), next: dueLog}
	if err := conn.query("PRAGMA page_size", nil, func(r row) error { return r.Scan(&c.frameSize) }); err != nil {
		return nil, errors.Join(err, conn.close())
	}
	c.frameSize += frameHeader
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
	if c.logged += frames * c.frameSize; c.logged < c.next {
		return
	}
	c.next = c.logged + retryLog
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
		if logged-copied <= remainderLog || logged > blockingLog {
			break
		}
	}
	c.store.mu.Lock()
	defer c.store.mu.Unlock()
	logged, _, err := c.pass("RESTART")
	if err != nil {
		return // as above
	}
	c.logged, c.next = logged, max(dueLog, logged+retryLog)
}

// pass copies what can be copied. It returns how many bytes the log holds (0 after a
// restart) and how many of them have been copied.
func (c *checkpointer) pass(mode string) (logged, copied int64, err error) {
	err = c.conn.query("PRAGMA wal_checkpoint("+mode+")", nil, func(r row) error {
		var busy int64
		if err := r.Scan(&busy, &logged, &copied); err != nil {
			return err
		}
		logged, copied = logged*c.frameSize, copied*c.frameSize
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
