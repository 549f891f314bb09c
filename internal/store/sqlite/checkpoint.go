package sqlite

import "sync"

// checkpointer moves the write-ahead log back into the database file beside the
// writer. SQLite would do it inside a commit, and everyone who waits for that
// commit would wait for the copying too.
type checkpointer struct {
	store   *Store
	conn    *connection
	due     chan struct{}
	stopped sync.WaitGroup
}

const (
	// checkpointBytes is how much may be written before the log is moved: a few
	// times as much in pages.
	checkpointBytes = 12 << 20
	// remainderFrames is how much of the log may be left to be moved while the
	// writer is held up.
	remainderFrames = 128
	maxPasses       = 4
)

func startCheckpointer(s *Store) (*checkpointer, error) {
	conn, err := connect(s.path)
	if err != nil {
		return nil, err
	}
	c := &checkpointer{store: s, conn: conn, due: make(chan struct{}, 1)}
	c.stopped.Go(func() {
		for range c.due {
			c.run()
		}
	})
	return c, nil
}

// notice is told of every commit, under the writer's lock.
func (c *checkpointer) notice(written int64) (counted int64) {
	if written < checkpointBytes {
		return written
	}
	select {
	case c.due <- struct{}{}:
	default: // one is due already
	}
	return 0
}

// run copies while the writer goes on, until little is left, and the rest while
// it waits: only when all of the log has been moved can it start from the
// beginning again, and a log that never does grows for ever.
func (c *checkpointer) run() {
	for range maxPasses {
		left, err := c.pass()
		if err != nil {
			return // nothing is lost: the log keeps it, and the next one tries again
		}
		if left <= remainderFrames {
			break
		}
	}
	c.store.mu.Lock()
	defer c.store.mu.Unlock()
	_, _ = c.pass() // as above
}

// pass moves what can be moved and returns how many frames are left.
func (c *checkpointer) pass() (left int64, err error) {
	err = c.conn.query("PRAGMA wal_checkpoint(PASSIVE)", nil, func(r row) error {
		var busy, logged, moved int64
		if err := r.Scan(&busy, &logged, &moved); err != nil {
			return err
		}
		left = logged - moved
		return nil
	})
	return left, err
}

func (c *checkpointer) close() error {
	close(c.due)
	c.stopped.Wait()
	return c.conn.close()
}
