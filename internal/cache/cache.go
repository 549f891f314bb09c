// Package cache provides a cache of recently used values that is bounded in bytes.
// Whether a cached value is still valid is up to the owner of the cache.
package cache

import "sync"

// Cache keeps recently used values in two halves. Values are added to the newer half, and
// move there from the older one when they are used. When the newer half is full, the older
// half is dropped and the newer becomes the older. It is safe for concurrent use.
type Cache[K comparable, V any] struct {
	mu           sync.Mutex
	newer, older map[K]entry[V]
	used         int // bytes in newer
	room         int // bytes that newer may hold, unless a single value is larger
}

type entry[V any] struct {
	value V
	bytes int
}

// overhead is roughly how many bytes an entry takes besides its value.
const overhead = 200

// New returns a cache of about the given number of bytes.
func New[K comparable, V any](bytes int) *Cache[K, V] {
	return &Cache[K, V]{newer: make(map[K]entry[V]), room: bytes / 2}
}

// Get returns the value of a key.
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

// Take removes a key and returns its value.
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

// Put sets the value of a key. bytes is the size of the value.
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

// Drop removes a key.
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

// Clear removes all keys.
func (c *Cache[K, V]) Clear() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.newer, c.older, c.used = make(map[K]entry[V]), nil, 0
}
