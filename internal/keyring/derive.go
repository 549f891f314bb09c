package keyring

import (
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"hash"
	"sync"

	"github.com/google/uuid"

	"countersign/internal/ledger"
)

// derivationSalt separates our keys from any others that might be derived from the same secret.
const derivationSalt = "countersign/keyring/v1"

// deriveKey is HKDF-SHA256. The info is the purpose's length (four bytes, big-endian), the purpose,
// and the organization's 16 bytes, so that no two pairs have the same info.
func deriveKey(master ledger.Secret, org uuid.UUID, purpose ledger.Purpose) []byte {
	info := binary.BigEndian.AppendUint32(nil, uint32(len(purpose))) //nolint:gosec // a purpose is one of a few short words
	info = append(info, purpose...)
	info = append(info, org[:]...)
	key, err := hkdf.Key(sha256.New, []byte(master.Reveal()), []byte(derivationSalt), string(info), sha256.Size)
	if err != nil {
		// Only a longer output or a shorter secret could fail, and both lengths are fixed.
		panic("keyring: " + err.Error())
	}
	return key
}

// statePool pools HMAC states that are already keyed: keying costs as much as authenticating a
// short record.
type statePool struct{ states sync.Pool }

type macState struct {
	hash hash.Hash
	sum  [sha256.Size]byte // a local variable would escape to the heap through the interface call
}

func newStatePool(key []byte) *statePool {
	return &statePool{states: sync.Pool{New: func() any {
		return &macState{hash: hmac.New(sha256.New, key)}
	}}}
}

func (p *statePool) mac(parts [][]byte) [sha256.Size]byte {
	state := p.states.Get().(*macState)
	for _, part := range parts {
		_, _ = state.hash.Write(part) // a hash never fails
	}
	state.hash.Sum(state.sum[:0])
	mac := state.sum
	state.hash.Reset()
	p.states.Put(state)
	return mac
}

// maxCachedStates bounds the memory for many organizations.
const maxCachedStates = 4096

type derivation struct {
	keyID   string
	org     uuid.UUID
	purpose ledger.Purpose
}

// stateCache caches the pools of the derivations in use.
type stateCache struct {
	mu    sync.RWMutex
	pools map[derivation]*statePool
}

func (c *stateCache) find(wanted derivation) *statePool {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.pools[wanted]
}

// add returns the pool that ends up in the cache, which is another goroutine's if that was first.
func (c *stateCache) add(wanted derivation, fresh *statePool) *statePool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if first := c.pools[wanted]; first != nil {
		return first
	}
	if c.pools == nil {
		c.pools = make(map[derivation]*statePool)
	}
	if len(c.pools) >= maxCachedStates {
		c.dropAny()
	}
	c.pools[wanted] = fresh
	return fresh
}

// dropAny drops whichever entry the map yields. Tracking the last use would slow down every hit to
// save a few microseconds on a rare miss.
func (c *stateCache) dropAny() {
	for victim := range c.pools {
		delete(c.pools, victim)
		return
	}
}
