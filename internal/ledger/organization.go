package ledger

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"

	"countersign/internal/fault"
)

// Organization owns chains and receipts. Its slug is part of every receipt and never changes.
type Organization struct {
	ID        OrgID
	Slug      string
	Name      string
	Settings  Settings
	Controls  Controls
	CreatedAt Time
	// Unreadable says that the stored settings or controls cannot be decoded, so the service did
	// not write them. Settings and Controls are then empty, the organization is never authentic,
	// and Slug and Name cannot be trusted.
	Unreadable bool
}

// Controls govern an organization besides its settings. Every transaction that records an action
// reads them, so a change applies to the very next action on every replica.
type Controls struct {
	KillSwitch KillSwitch `json:"kill_switch"`
	// Policy names the set in force. The zero value means the built-in defaults.
	Policy PolicyRef `json:"policy"`
	// Webhooks is the number of endpoints, so that an organization without any has no overhead.
	Webhooks int `json:"webhooks"`
	// Act is the sequence of the audit log entry that last changed the organization; 0 in records
	// that predate it. It only grows, so that a client can order responses.
	Act int64 `json:"act_number,omitempty"`
	// MAC authenticates the whole organization; see Seal.
	MAC []byte `json:"mac,omitempty"`
}

// KillSwitch stops everything that an organization's agents do.
type KillSwitch struct {
	Active    bool   `json:"active"`
	Reason    string `json:"reason"`
	ChangedAt *Time  `json:"changed_at"`
	ChangedBy string `json:"changed_by"` // name of the key that changed it
}

// PolicyRef identifies a policy set that was put.
type PolicyRef struct {
	Number  int64  `json:"number"`
	Version string `json:"version"`
	SHA256  string `json:"sha256"` // of the document; the version contains only a part of a hash
}

// DecodeStored sets the settings and controls from their stored forms. controls is nil in rows that
// predate them. If decoding fails, the organization becomes unreadable, but that is not an error:
// one row must not hide the others of a list.
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

// Encode returns the controls in their stored form.
func (c *Controls) Encode() ([]byte, error) {
	body, err := json.Marshal(c)
	if err != nil {
		return nil, fmt.Errorf("encode controls: %w", err)
	}
	return body, nil
}

// DecodeControls decodes the result of Encode.
func DecodeControls(body []byte) (Controls, error) {
	var c Controls
	if err := json.Unmarshal(body, &c); err != nil {
		return Controls{}, fmt.Errorf("decode controls: %w", err)
	}
	return c, nil
}

var errUnreadableOrganization = errors.New("the organization's settings, policy or kill switch were changed outside the service and cannot be read")

// Hash covers everything that governs the organization. The audit log contains it after every act,
// so that a change outside the service is detected.
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

// Seal authenticates the organization in its current state. Every change must seal it again, so
// that no action is decided with settings that someone has written to the database.
func (o *Organization) Seal(keys Keys) error {
	hash, err := o.unsealed()
	if err != nil {
		return err
	}
	o.Controls.MAC = Authenticate(keys, o.ID, PurposeOrganization, hash[:])
	return nil
}

// Authentic reports whether the organization is what the service sealed.
func (o *Organization) Authentic(keys Keys) bool {
	hash, err := o.unsealed()
	return err == nil && Authentic(keys, o.ID, PurposeOrganization, o.Controls.MAC, hash[:])
}

func (o *Organization) unsealed() ([32]byte, error) {
	plain := *o
	plain.Controls.MAC = nil
	return plain.Hash()
}

// Size returns the approximate memory of the organization, in bytes.
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

// CheckSlug refuses an invalid slug.
func CheckSlug(slug string) error {
	if !slugPattern.MatchString(slug) {
		return fault.Errorf(fault.CodeInvalid, "a slug is 1 to 63 lower-case letters, digits and inner hyphens")
	}
	return nil
}
