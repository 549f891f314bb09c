package ledger

import (
	"crypto/hmac"
	"crypto/sha256"
	"errors"
	"fmt"

	"countersign/internal/canon"
)

// Actor is who did something: an API key, the operator, or the service itself when a deadline
// passes.
type Actor struct {
	Key  KeyID // zero if no key was used
	Name string
	Role string
}

// Actors without a key.
var (
	ActorOperator = Actor{Name: "operator", Role: "operator"}
	ActorService  = Actor{Name: "countersign", Role: "service"}
)

// Act is one entry of the audit log: who changed what. The entries of an organization form a hash
// chain, and the log's end is authenticated.
type Act struct {
	Sequence int64
	At       Time
	Actor    Actor
	Action   string // such as "api_key.create"
	Target   string // the id or name of what was changed
	Detail   []byte // canonical object or nil; never contains a secret or a payload
	Controls [32]byte
	Previous *[32]byte // nil for the first
}

// StoredAct is an act as it is stored.
type StoredAct struct {
	Org      OrgID
	Sequence int64
	Body     []byte
	// Tampered says that the act is missing or not what the service recorded. Only Org and Sequence
	// are then set. A store leaves it false.
	Tampered bool
}

// Previous returns the hash of the previous act according to the body. It is nil for the first act
// and if the body cannot be read. It is as trustworthy as the body.
func (a *StoredAct) Previous() *[32]byte {
	v, err := canon.Parse(a.Body)
	if err != nil {
		return nil
	}
	hash, ok := ParseHash(canon.NewFields(v).Text("previous_hash", maxName))
	if !ok {
		return nil
	}
	return &hash
}

// Hash returns the hash that the next act contains.
func (a *StoredAct) Hash() [32]byte { return sha256.Sum256(a.Body) }

func (a *Act) encode() []byte {
	w := canon.BeginObject(make([]byte, 0, 512))
	w.String("action", a.Action)
	actor := canon.BeginObject(w.Name("actor"))
	writeIDOrNull(&actor, "key_id", a.Actor.Key.UUID)
	actor.String("name", a.Actor.Name)
	actor.String("role", a.Actor.Role)
	w.Value(actor.End())
	writeTime(&w, "at", a.At)
	w.Raw("detail", a.Detail)
	w.String("organization_hash", FormatHash(a.Controls))
	writeHashOrNull(&w, "previous_hash", a.Previous)
	w.Int("sequence", a.Sequence)
	w.StringOrNull("target", a.Target)
	return w.End()
}

// ActLog is the authenticated end of an organization's audit log. It reveals that acts were cut
// off, and that the organization was changed.
type ActLog struct {
	Org      OrgID
	Count    int64
	Last     *[32]byte
	Controls [32]byte // hash of the organization after the last act
	MAC      []byte   // with the key's id

	begins bool // the log is empty; set by this process, never read from a row
}

// NewActLog returns the log of an organization that is being created.
func NewActLog(org OrgID) *ActLog { return &ActLog{Org: org, begins: true} }

// Begins reports whether the row says that the log is empty. An attacker can empty a row; see
// Begin.
func (l *ActLog) Begins() bool { return l.Count == 0 && l.Last == nil && len(l.MAC) == 0 }

// Begin allows the first act in the log of an organization that predates audit logs. Only an
// operator's decision leads here.
func (l *ActLog) Begin() { l.begins = l.Begins() }

func (l *ActLog) encode() []byte {
	w := canon.BeginObject(make([]byte, 0, 256))
	w.Int("count", l.Count)
	writeHashOrNull(&w, "last_hash", l.Last)
	w.String("organization_hash", FormatHash(l.Controls))
	writeID(&w, "organization_id", l.Org.UUID)
	return w.End()
}

// Authentic reports whether the service wrote this end.
func (l *ActLog) Authentic(keys Keys) bool {
	return l.Count >= 0 && l.Count <= maxCount && Authentic(keys, l.Org, PurposeAuditHead, l.MAC, l.encode())
}

// Append records an act and advances the log's end. org is the organization after the act.
func (l *ActLog) Append(keys Keys, org *Organization, act Act) (*StoredAct, error) {
	if !l.begins && !l.Authentic(keys) {
		return nil, fmt.Errorf("audit log's head fails its authenticator: %w", ErrStateTampered)
	}
	controls, err := org.Hash()
	if err != nil {
		return nil, err
	}
	act.Sequence, act.Controls, act.Previous = l.Count+1, controls, l.Last
	stored := &StoredAct{Org: l.Org, Sequence: act.Sequence, Body: act.encode()}
	hash := stored.Hash()
	l.Count, l.Last, l.Controls, l.begins = act.Sequence, &hash, controls, false
	l.MAC = Authenticate(keys, l.Org, PurposeAuditHead, l.encode())
	return stored, nil
}

var errUnreadableAct = errors.New("stored act cannot be read")

// DecodeAct decodes an act. It does not check the links; ActWalk does.
func DecodeAct(body []byte) (*Act, error) {
	r, err := openRecord(body)
	if err != nil {
		return nil, errUnreadableAct
	}
	r.Ignore("organization_hash")
	r.Ignore("previous_hash")
	act := &Act{
		Sequence: r.Int("sequence", 1, maxCount), At: r.time("at"),
		Action: r.Text("action", maxName), Target: r.Text("target", maxStored), Detail: r.Object("detail", len(body)),
	}
	actor := r.nested("actor")
	if actor == nil {
		return nil, errUnreadableAct
	}
	key, _ := actor.optionalID("key_id")
	act.Actor = Actor{Key: KeyID{key}, Name: actor.Text("name", maxName), Role: actor.Text("role", maxName)}
	r.join(actor)
	if !r.readable() {
		return nil, errUnreadableAct
	}
	return act, nil
}

// ActWalk walks an audit log from its first act and finds changes.
type ActWalk struct {
	Checked int64
	last    *[32]byte
}

// Step checks the next act.
func (w *ActWalk) Step(a *StoredAct) error {
	v, err := canon.Parse(a.Body)
	if err != nil {
		return errUnreadableAct
	}
	f := canon.NewFields(v)
	sequence := f.Int("sequence", 1, maxCount)
	previous := f.Text("previous_hash", maxName)
	wanted := ""
	if w.last != nil {
		wanted = FormatHash(*w.last)
	}
	if sequence != w.Checked+1 || a.Sequence != sequence || previous != wanted {
		return fmt.Errorf("act %d is missing, out of order or changed", w.Checked+1)
	}
	hash := a.Hash()
	w.Checked, w.last = sequence, &hash
	return nil
}

// Finish checks what was walked against the log's end and the current organization.
func (w *ActWalk) Finish(end *ActLog, org *Organization, keys Keys) error {
	switch {
	case end == nil:
		return errors.New("the audit log's end is missing")
	case !end.Authentic(keys):
		return errors.New("the audit log's end fails its authenticator")
	case end.Count != w.Checked || (end.Last != nil && w.last != nil && !hmac.Equal(end.Last[:], w.last[:])):
		return fmt.Errorf("the audit log counts %d acts, %d are stored", end.Count, w.Checked)
	}
	controls, err := org.Hash()
	if err != nil {
		return err
	}
	if controls != end.Controls {
		return errors.New("the organization's settings, policy or kill switch were changed outside the service")
	}
	return nil
}
