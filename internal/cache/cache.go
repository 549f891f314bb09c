// Package cache is the memory of those who would otherwise read, decode or
// verify the same thing again. It is bounded in bytes, and it forgets what has
// not been used lately. It knows nothing of what it keeps: whether that still
// holds is for its owner to say.
package cache

import "sync"

// Cache keeps what was used lately: when the newer half is full, the older half
// is forgotten, and what is used moves from the older to the newer. It may be
// used by several goroutines.
type Cache[K comparable, V any] struct {
	mu           sync.Mutex
	newer, older map[K]entry[V]
	used         int // bytes in newer
	room         int // bytes that newer may hold
}

type entry[V any] struct {
	value V
	bytes int
}

// overhead is what an entry takes beside its value's bytes, roughly.
const overhead = 200

// New makes a memory of about so many bytes.
func New[K comparable, V any](bytes int) *Cache[K, V] {
	return &Cache[K, V]{newer: make(map[K]entry[V]), room: bytes / 2}
}

// Get finds what is kept under a key.
func (c *Cache[K, V]) Get(key K) (V, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	kept, ok := c.newer[key]
	if ok {
		return kept.value, true
	}
	if kept, ok = c.older[key]; ok {
		c.put(key, kept)
	}
	return kept.value, ok
}

// Take finds what is kept under a key and forgets it.
func (c *Cache[K, V]) Take(key K) (V, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	kept, ok := c.newer[key]
	if !ok {
		kept, ok = c.older[key]
	}
	c.drop(key)
	return kept.value, ok
}

// Put keeps a value of so many bytes under a key.
func (c *Cache[K, V]) Put(key K, value V, bytes int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.put(key, entry[V]{value, bytes + overhead})
}

func (c *Cache[K, V]) put(key K, kept entry[V]) {
	c.drop(key)
	if c.used > 0 && c.used+kept.bytes > c.room {
		c.newer, c.older, c.used = make(map[K]entry[V]), c.newer, 0
	}
	c.newer[key] = kept
	c.used += kept.bytes
}

// Drop forgets a key.
func (c *Cache[K, V]) Drop(key K) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.drop(key)
}

func (c *Cache[K, V]) drop(key K) {
	if kept, ok := c.newer[key]; ok {
		c.used -= kept.bytes
		delete(c.newer, key)
	}
	delete(c.older, key)
}

// Clear forgets everything.
func (c *Cache[K, V]) Clear() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.newer, c.older, c.used = make(map[K]entry[V]), nil, 0
}
