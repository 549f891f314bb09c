package ledger

import (
	"encoding/json"
	"regexp"
	"strings"
	"time"

	"countersign/internal/classify"
)

// KeyRecord is an API key as the service knows it. It contains a hash of the key, never its text.
type KeyRecord struct {
	ID        KeyID
	Org       OrgID
	Name      string
	Role      Role
	Hash      [32]byte
	Hint      string // prefix and last characters, for people to recognize it
	CreatedAt Time
	RevokedAt *Time

	Agents   []string // names of the agents that it may record for, as they were given; empty: any
	Owner    string   // who is responsible for it; free text, may be ""
	SignInAs string   // identity that signs in as this key by single sign-on, in its normal form; "": none
	// SlackMember is who decides approvals with this key in Slack, as "team/user"; "": nobody.
	SlackMember string
	ExpiresAt   *Time // nil: never
	LastUsedAt  *Time // may lag by a minute; decides nothing
	// Previous is the secret that the last rotation replaced, or nil.
	Previous *PreviousSecret
	// ExpiryLogged says that the audit log has an entry about the expiry.
	ExpiryLogged bool
	Act          int64  // number of the act that last changed it; 0 in rows that predate it
	MAC          []byte // authenticates everything except LastUsedAt
	// Tampered says that the stored row is not what the service wrote. Such a key cannot be used,
	// and only its id is shown.
	Tampered bool
}

// PreviousSecret is a replaced secret that may still be used for a while.
type PreviousSecret struct {
	Hash      [32]byte
	ExpiresAt Time // refused from this time on
}

// APIKeyStatus is the status of an API key.
type APIKeyStatus string

// The statuses of an API key. A revoked key stays revoked after it expires.
const (
	APIKeyActive  APIKeyStatus = "active"
	APIKeyExpired APIKeyStatus = "expired"
	APIKeyRevoked APIKeyStatus = "revoked"
	// APIKeyTampered is the status of a key whose row was changed outside the service.
	APIKeyTampered APIKeyStatus = "tampered"
)

// Status returns the key's status at a time.
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

// Active reports whether the key can be used.
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

// Rotate replaces the key's secret. The replaced secret is accepted for the overlap. An even
// earlier one is no longer accepted.
func (k *KeyRecord) Rotate(secret APIKey, now Time, overlap time.Duration) {
	k.Previous = &PreviousSecret{Hash: k.Hash, ExpiresAt: now.Add(overlap)}
	k.Hash, k.Hint = secret.Hash(), secret.Hint()
}

// MaxSignInAs is the maximum length of an identity for single sign-on, in bytes. OpenID Connect
// allows as much for a subject.
const MaxSignInAs = 255

// NormalSignInAs returns the normal form of an identity for single sign-on. Two identities are the
// same if their normal forms have the same bytes. An e-mail address, which is anything with an @, is
// in lower case; everything else is left as it is. ok is false for an identity that is empty, too
// long, or has anything but visible ASCII characters: a letter that looks like another one must not
// reach the admin who enters what a page has shown.
func NormalSignInAs(identity string) (normal string, ok bool) {
	if identity == "" || len(identity) > MaxSignInAs {
		return "", false
	}
	for i := range len(identity) {
		if c := identity[i]; c <= ' ' || c > '~' {
			return "", false
		}
	}
	if strings.Contains(identity, "@") {
		identity = strings.ToLower(identity) // ASCII alone, as was checked above
	}
	return identity, true
}

// SlackMemberForm describes a Slack member for error messages.
const SlackMemberForm = "must be a Slack team id, a slash and a member id, such as T0123456789/U0123456789"

var slackMemberPattern = regexp.MustCompile(`^[TE][A-Z0-9]{1,30}/[UW][A-Z0-9]{1,30}$`)

// IsSlackMember reports whether a text has the form of a Slack member: the ids of a team and of a user
// in it. Ids of users are unique only within their team.
func IsSlackMember(text string) bool { return slackMemberPattern.MatchString(text) }

// EncodeAgents encodes a list of agent names for storage.
func EncodeAgents(names []string) []byte {
	if len(names) == 0 {
		return []byte("[]")
	}
	encoded, err := json.Marshal(names)
	if err != nil {
		panic(err) // a list of strings can always be encoded
	}
	return encoded
}

// DecodeAgents decodes the result of EncodeAgents. It returns nil for an empty list.
func DecodeAgents(encoded []byte) ([]string, error) {
	var names []string
	if err := json.Unmarshal(encoded, &names); err != nil || len(names) == 0 {
		return nil, err
	}
	return names, nil
}

// Role is what an API key may do. Each role includes the roles before it.
type Role string

// The roles, weakest first.
const (
	RoleAgent  Role = "agent"
	RoleMember Role = "member"
	RoleAdmin  Role = "admin"
)

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
