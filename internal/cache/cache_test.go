package cache

import (
	"sync"
	"testing"
)

const (
	each = 1000
	room = 10 // entries in a half
)

func newCache() *Cache[int, int] { return New[int, int](2 * room * (each + overhead)) }

func (c *Cache[K, V]) kept() int { return len(c.newer) + len(c.older) }

func expect(t *testing.T, c *Cache[int, int], key int, want bool) {
	t.Helper()
	if value, ok := c.Get(key); ok != want || ok && value != key {
		t.Errorf("%d is kept as %d, %t, want %t", key, value, ok, want)
	}
}

// What is used stays in the cache, what is not is dropped, and the cache stays
// within its limit.
func TestWhatIsUsedStays(t *testing.T) {
	t.Parallel()
	c := newCache()
	c.Put(-1, -1, each)
	for i := range 10 * room {
		expect(t, c, -1, true)
		c.Put(i, i, each)
		expect(t, c, i, true)
		if kept := c.kept(); kept > 2*room {
			t.Fatalf("%d entries are kept, want at most %d", kept, 2*room)
		}
	}
	expect(t, c, 0, false)
	c.Drop(-1)
	expect(t, c, -1, false)
}

// What is removed and added again, over and over, takes no more room than once.
func TestTakeGivesRoomBack(t *testing.T) {
	t.Parallel()
	c := newCache()
	for i := range room {
		c.Put(i, i, each)
	}
	for range 100 {
		value, ok := c.Take(3)
		if !ok || value != 3 {
			t.Fatalf("took %d, %t", value, ok)
		}
		if _, ok := c.Take(3); ok {
			t.Fatal("took the same twice")
		}
		c.Put(3, 3, each)
	}
	for i := range room {
		expect(t, c, i, true)
	}
}

// A value under a key that is kept replaces it, whatever its size.
func TestPutReplaces(t *testing.T) {
	t.Parallel()
	c := newCache()
	for i := range 2 * room { // the first half is the older one now
		c.Put(i, i, each)
	}
	c.Put(0, 7, 2*each)
	if value, ok := c.Get(0); !ok || value != 7 {
		t.Errorf("the newest value is %d, %t", value, ok)
	}
	c.Drop(0)
	expect(t, c, 0, false)
	c.Clear()
	if c.kept() != 0 || c.used != 0 {
		t.Errorf("%d entries of %d bytes are left of nothing", c.kept(), c.used)
	}
}

// What is larger than the room is kept until the next one comes.
func TestTooLarge(t *testing.T) {
	t.Parallel()
	c := newCache()
	for i := range 10 {
		c.Put(i, i, 100*room*each)
		expect(t, c, i, true)
		if kept := c.kept(); kept > 2 {
			t.Fatalf("%d values that are too large are kept", kept)
		}
	}
}

// A cache that many goroutines use returns the right values and stays within its
// limit.
//
//countersign:race
func TestManyAtOnce(t *testing.T) {
	t.Parallel()
	c := newCache()
	var crowd sync.WaitGroup
	for worker := range 8 {
		crowd.Go(func() {
			for i := range 1000 {
				key := (worker + i) % (3 * room)
				if value, ok := c.Get(key); ok && value != key {
					t.Errorf("%d is %d", key, value)
				}
				c.Put(key, key, each)
				c.Take(key + 1)
			}
		})
	}
	crowd.Wait()
	if kept := c.kept(); kept > 2*room {
		t.Errorf("%d entries are kept, want at most %d", kept, 2*room)
	}
}
