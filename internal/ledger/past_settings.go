package ledger

import (
	"encoding/json"
	"fmt"
)

// PastSettings are the settings that an organization had, as its audit log tells them.
// The zero value is before the first act. It is not safe for concurrent use.
type PastSettings struct {
	changes []map[string]settingChange // oldest first
}

// settingChange is one member of an organization.update's detail.
type settingChange struct {
	From json.RawMessage `json:"from"`
}

// maxPastSettings bounds how many changes are kept: the newest.
const maxPastSettings = 10_000

// Step takes the next act.
func (p *PastSettings) Step(stored *StoredAct) error {
	said, err := read(stored)
	if err != nil || string(said.action) != ActOrganizationUpdate {
		return err
	}
	act, err := DecodeAct(stored.Body)
	if err != nil {
		return err
	}
	var detail struct {
		Changed map[string]settingChange `json:"changed"`
	}
	if err := json.Unmarshal(act.Detail, &detail); err != nil {
		return fmt.Errorf("%w: %w", errUnreadableAct, err)
	}
	delete(detail.Changed, "name") // no setting
	if len(detail.Changed) == 0 {
		return nil
	}
	if p.changes = append(p.changes, detail.Changed); len(p.changes) > maxPastSettings {
		p.changes = p.changes[1:]
	}
	return nil
}

// Find goes back from the settings of now to those under which a set has the version.
// Whatever it finds makes the version's digits; an act that somebody has changed only
// keeps it from finding any.
func (p *PastSettings) Find(now *Settings, version, set string) (*Settings, error) {
	encoded, err := now.Encode()
	if err != nil {
		return nil, err
	}
	members := make(map[string]json.RawMessage)
	if err := json.Unmarshal(encoded, &members); err != nil {
		return nil, fmt.Errorf("decode settings: %w", err)
	}
	for i := len(p.changes) - 1; i >= 0; i-- {
		for name, change := range p.changes[i] {
			if string(change.From) == "null" { // as a setting that has its default
				delete(members, name)
				continue
			}
			members[name] = change.From
		}
		body, err := json.Marshal(members)
		if err != nil {
			return nil, fmt.Errorf("encode settings: %w", err)
		}
		before, err := DecodeSettings(body)
		if err == nil && before.Names(version, set) {
			return &before, nil
		}
	}
	return nil, ErrNotFound
}
