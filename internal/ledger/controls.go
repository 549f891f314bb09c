package ledger

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
)

// Controls are what governs an organization besides its settings. Every
// transaction that records an action reads them, so that a change holds for the
// very next action on every replica.
type Controls struct {
	KillSwitch KillSwitch `json:"kill_switch"`
	// Policy names the set in force; the zero value is the built-in defaults.
	Policy PolicyRef `json:"policy"`
	// Webhooks is how many endpoints want to be told, so that an organization
	// without any pays nothing for them.
	Webhooks int `json:"webhooks"`
	// Act is the sequence of the audit-log entry that last changed the
	// organization; 0 in a record from before it was kept. It only grows, so a
	// client can tell an older answer from a newer one.
	Act int64 `json:"act_number,omitempty"`
	// MAC authenticates the whole organization; see Seal.
	MAC []byte `json:"mac,omitempty"`
}

// KillSwitch stops everything an organization's agents do.
type KillSwitch struct {
	Active    bool   `json:"active"`
	Reason    string `json:"reason"`
	ChangedAt *Time  `json:"changed_at"`
	ChangedBy string `json:"changed_by"` // the name of the key that did it
}

// PolicyRef names one put of a policy set.
type PolicyRef struct {
	Number  int64  `json:"number"`
	Version string `json:"version"`
	SHA256  string `json:"sha256"` // of the document as it was put: the version has room for a part of a hash only
}

// Encode writes the controls as they are stored.
func (c *Controls) Encode() ([]byte, error) {
	body, err := json.Marshal(c)
	if err != nil {
		return nil, fmt.Errorf("encode controls: %w", err)
	}
	return body, nil
}

// DecodeControls reads what Encode wrote.
func DecodeControls(body []byte) (Controls, error) {
	var c Controls
	if err := json.Unmarshal(body, &c); err != nil {
		return Controls{}, fmt.Errorf("decode controls: %w", err)
	}
	return c, nil
}

var errUnreadableOrganization = errors.New("the organization's settings, policy or kill switch were changed outside the service and cannot be read")

// Hash covers all that governs the organization. The audit log carries it after
// every act, so that a change made behind the service's back shows.
func (o *Organization) Hash() ([32]byte, error) {
	if o.Unreadable {
		return [32]byte{}, errUnreadableOrganization
	}
	settings, err := o.Settings.Encode()
	if err != nil {
		return [32]byte{}, err
	}
	controls, err := o.Controls.Encode()
	if err != nil {
		return [32]byte{}, err
	}
	h := sha256.New()
	for _, part := range [][]byte{[]byte(o.Slug), []byte(o.Name), []byte(o.CreatedAt.String()), settings, controls} {
		fmt.Fprintf(h, "%d:", len(part))
		h.Write(part)
	}
	return [32]byte(h.Sum(nil)), nil
}

// Seal authenticates the organization as it is now. Whoever changes it seals it
// anew, so that no action is ever decided under settings that someone has put into
// the database.
func (o *Organization) Seal(keys Keys) error {
	hash, err := o.unsealed()
	if err != nil {
		return err
	}
	o.Controls.MAC = authenticate(keys, o.ID, PurposeOrganization, hash[:])
	return nil
}

// Authentic reports whether the organization is as the service sealed it.
func (o *Organization) Authentic(keys Keys) bool {
	hash, err := o.unsealed()
	return err == nil && authentic(keys, o.ID, PurposeOrganization, o.Controls.MAC, hash[:])
}

func (o *Organization) unsealed() ([32]byte, error) {
	plain := *o
	plain.Controls.MAC = nil
	return plain.Hash()
}
