package ledger

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"

	"countersign/internal/fault"
)

// Organization owns chains and receipts. Its slug stands in every receipt and
// never changes.
type Organization struct {
	ID        OrgID
	Slug      string
	Name      string
	Settings  Settings
	Controls  Controls
	CreatedAt Time
	// Unreadable says that the stored settings or controls cannot be decoded: somebody
	// else has written them. Then Settings and Controls are empty and the organization
	// is never authentic; Slug and Name are as somebody left them.
	Unreadable bool
}

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

// DecodeStored sets the settings and controls from their stored forms; controls are nil
// in a row from before they were kept. What cannot be decoded makes the organization
// unreadable and is no error: one row must not hide the others of a list.
func (o *Organization) DecodeStored(settings, controls []byte) {
	var settingsErr, controlsErr error
	o.Settings, settingsErr = DecodeSettings(settings)
	if controls != nil {
		o.Controls, controlsErr = DecodeControls(controls)
	}
	if settingsErr != nil || controlsErr != nil {
		o.Settings, o.Controls, o.Unreadable = Settings{}, Controls{}, true
	}
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

// Size is about how many bytes of memory the organization takes.
func (o *Organization) Size() int {
	bytes := 1000 + len(o.Name)
	for _, list := range [][]string{o.Settings.ExternalDomainsAllowlist, o.Settings.HighRiskAgents, o.Settings.FallbackApprovers} {
		for _, text := range list {
			bytes += len(text) + 16
		}
	}
	for i := range o.Settings.Budgets {
		bytes += 300
		for _, text := range o.Settings.Budgets[i].Match {
			bytes += len(text) + 16
		}
	}
	return bytes
}

var slugPattern = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

// CheckSlug refuses what cannot be an organization's slug.
func CheckSlug(slug string) error {
	if !slugPattern.MatchString(slug) {
		return fault.Errorf(fault.CodeInvalid, "a slug is 1 to 63 lower-case letters, digits and inner hyphens")
	}
	return nil
}
