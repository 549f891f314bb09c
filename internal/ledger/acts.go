package ledger

import (
	"crypto/hmac"
	"crypto/sha256"
	"errors"
	"fmt"

	"countersign/internal/canon"
)

// Actor is who did something: an API key, or the operator at the machine, or the
// service itself when a deadline passes.
type Actor struct {
	Key  KeyID // zero where no key was used
	Name string
	Role string
}

// The actors without a key.
var (
	ActorOperator = Actor{Name: "operator", Role: "operator"}
	ActorService  = Actor{Name: "countersign", Role: "service"}
)

// Act is one entry of the audit log: who changed what. The entries of an
// organization form a hash chain, and the log's head is authenticated.
type Act struct {
	Sequence int64
	At       Time
	Actor    Actor
	Action   string // such as "api_key.create"
	Target   string // the id or name of what was changed
	Detail   []byte // canonical object, nil for none; never a secret or a payload
	Controls [32]byte
	Previous *[32]byte // nil for the first
}

// StoredAct is an act as a store keeps it.
type StoredAct struct {
	Org      OrgID
	Sequence int64
	Body     []byte
	// Tampered says that the act is missing, or not as the service entered it. Then
	// nothing but Org and Sequence is set. A store leaves it unset.
	Tampered bool
}

// Previous is the hash of the act before, as the body says; nil in the first act and
// where the body cannot be read. It is worth as much as the body.
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

// Hash is what the next act carries.
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

// ActLog is the authenticated end of an organization's audit log: cutting acts
// off shows, and so does a changed organization.
type ActLog struct {
	Org      OrgID
	Count    int64
	Last     *[32]byte
	Controls [32]byte // of the organization after the last act
	MAC      []byte   // with the key's id

	begins bool // nothing was entered yet, by the word of this process and of no row
}

// NewActLog is the log of an organization that is just being made.
func NewActLog(org OrgID) *ActLog { return &ActLog{Org: org, begins: true} }

// Begins reports whether nothing was ever entered, as the row says. A row can be
// emptied: see Begin.
func (l *ActLog) Begins() bool { return l.Count == 0 && l.Last == nil && len(l.MAC) == 0 }

// Begin lets the first act be entered into the log of an organization from before
// there were logs. An operator has said so.
func (l *ActLog) Begin() { l.begins = l.Begins() }

func (l *ActLog) encode() []byte {
	w := canon.BeginObject(make([]byte, 0, 256))
	w.Int("count", l.Count)
	writeHashOrNull(&w, "last_hash", l.Last)
	w.String("organization_hash", FormatHash(l.Controls))
	writeID(&w, "organization_id", l.Org.UUID)
	return w.End()
}

// Authentic reports whether the log's end is one that this service wrote.
func (l *ActLog) Authentic(keys Keys) bool {
	return l.Count >= 0 && l.Count <= maxCount && authentic(keys, l.Org, PurposeAuditHead, l.MAC, l.encode())
}

// Append enters an act and moves the log's end on. The organization is as the
// act leaves it.
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
	l.MAC = authenticate(keys, l.Org, PurposeAuditHead, l.encode())
	return stored, nil
}

var errUnreadableAct = errors.New("stored act cannot be read")

// DecodeAct reads what an act says. Its links are for ActWalk to judge.
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

// ActWalk follows an audit log from its first act and finds what was changed.
type ActWalk struct {
	Checked int64
	last    *[32]byte
}

// Step takes the next act.
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

// Finish holds what was walked against the log's end and the organization as it
// is now.
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
