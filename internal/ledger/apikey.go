package ledger

import (
	"encoding/json"

	"countersign/internal/classify"
)

// KeyRecord is an API key as the service knows it: never its text, only a hash.
type KeyRecord struct {
	ID        KeyID
	Org       OrgID
	Name      string
	Role      Role
	Hash      [32]byte
	Hint      string // prefix and last characters, for people to recognise it by
	CreatedAt Time
	RevokedAt *Time

	Agents     []string // the names that it may record for, as they were given; none: any
	Owner      string   // who answers for it; free text, "" where nobody was named
	ExpiresAt  *Time    // nil: never
	LastUsedAt *Time    // may lag behind by a minute; nothing is decided by it
	// Previous is the secret that the last rotation replaced, nil before the first.
	Previous *PreviousSecret
	// ExpiryLogged says that the audit log has an entry about the expiry.
	ExpiryLogged bool
	Act          int64  // the number of the act that changed it last; 0 in a row from before it was kept
	MAC          []byte // authenticates all of it but when it was last used
	// Tampered says that the stored row is not as the service wrote it. The key opens
	// nothing, and nothing else of it is told.
	Tampered bool
}

// PreviousSecret is a secret that was replaced and may still be used for a while.
type PreviousSecret struct {
	Hash      [32]byte
	ExpiresAt Time // it is refused from this moment on
}

// APIKeyStatus is where an API key stands.
type APIKeyStatus string

// The statuses of an API key. A key that was revoked stays so when its time is up.
const (
	APIKeyActive  APIKeyStatus = "active"
	APIKeyExpired APIKeyStatus = "expired"
	APIKeyRevoked APIKeyStatus = "revoked"
	// APIKeyTampered is of a key whose row was changed outside the service.
	APIKeyTampered APIKeyStatus = "tampered"
)

// Status is where the key stands at a moment.
func (k *KeyRecord) Status(now Time) APIKeyStatus {
	switch {
	case k.Tampered:
		return APIKeyTampered
	case k.RevokedAt != nil:
		return APIKeyRevoked
	case k.ExpiresAt != nil && now >= *k.ExpiresAt:
		return APIKeyExpired
	default:
		return APIKeyActive
	}
}

// Active reports whether the key still opens anything.
func (k *KeyRecord) Active(now Time) bool { return k.Status(now) == APIKeyActive }

// MayRecord reports whether the key may record an action of the agent.
func (k *KeyRecord) MayRecord(agent string) bool {
	if len(k.Agents) == 0 {
		return true
	}
	folded := classify.FoldName(agent)
	for _, name := range k.Agents {
		if name == agent || classify.FoldName(name) == folded {
			return true
		}
	}
	return false
}

// Rotate replaces the key's secret. The one that it replaces is accepted for the
// overlap; one that an earlier rotation left is accepted no more.
func (k *KeyRecord) Rotate(secret APIKey, now, overlap Time) {
	k.Previous = &PreviousSecret{Hash: k.Hash, ExpiresAt: now + overlap}
	k.Hash, k.Hint = secret.Hash(), secret.Hint()
}

// EncodeAgents writes a list of agents' names as stores keep it.
func EncodeAgents(names []string) []byte {
	if len(names) == 0 {
		return []byte("[]")
	}
	encoded, err := json.Marshal(names)
	if err != nil {
		panic(err) // a list of strings always has a form
	}
	return encoded
}

// DecodeAgents reads what EncodeAgents wrote; nil for an empty list.
func DecodeAgents(encoded []byte) ([]string, error) {
	var names []string
	if err := json.Unmarshal(encoded, &names); err != nil || len(names) == 0 {
		return nil, err
	}
	return names, nil
}

// Role is what an API key may do. Each role may do what the ones before it may.
type Role string

// The roles, weakest first.
const (
	RoleAgent  Role = "agent"
	RoleMember Role = "member"
	RoleAdmin  Role = "admin"
)

// ParseRole reads a role's name.
func ParseRole(text string) (Role, bool) {
	role := Role(text)
	return role, role.rank() > 0
}

// Includes reports whether the role may do what the other may.
func (r Role) Includes(other Role) bool {
	return other.rank() > 0 && r.rank() >= other.rank()
}

func (r Role) rank() int {
	switch r {
	case RoleAgent:
		return 1
	case RoleMember:
		return 2
	case RoleAdmin:
		return 3
	default:
		return 0
	}
}
