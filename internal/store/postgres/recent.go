package postgres

import "sync"

// recent keeps what was used lately, within bounds: when the newer half is full,
// the older half is forgotten.
type recent[K comparable, V any] struct {
	mu           sync.Mutex
	newer, older map[K]V
	used         int // bytes in newer
	room         int // bytes that newer may hold
}

// entryOverhead is what an entry takes beside its value's bytes, roughly.
const entryOverhead = 200

func newRecent[K comparable, V any](bytes int) *recent[K, V] {
	return &recent[K, V]{newer: make(map[K]V), room: bytes / 2}
}

func (r *recent[K, V]) get(key K) (V, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	value, ok := r.newer[key]
	if !ok {
		value, ok = r.older[key]
	}
	return value, ok
}

// put keeps a value of so many bytes under a key. One that is kept already is
// thereby used once more.
func (r *recent[K, V]) put(key K, value V, bytes int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, ok := r.newer[key]; !ok {
		r.used += bytes + entryOverhead
	}
	r.newer[key] = value
	if r.used > r.room {
		r.newer, r.older, r.used = make(map[K]V), r.newer, 0
	}
}

// drop forgets a key. Its bytes are counted until newer is full the next time.
func (r *recent[K, V]) drop(key K) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.newer, key)
	delete(r.older, key)
}
