package service

import (
	"context"
	"fmt"
	"slices"

	"countersign/internal/canon"
	"countersign/internal/evidence"
	"countersign/internal/ledger"
	"countersign/internal/store"
)

// act is an administrative change on its way to the store. There is no other way
// to make one: what it changes and the entry in the audit log that says so are
// written together.
type act struct {
	caller *Caller      // nil for an actor without a key
	actor  ledger.Actor // who that is
	org    ledger.OrgID
	needs  func(*store.Needs) // what change reads besides the organization, optional
	// change makes the change on a copy of the organization and in the batch's
	// changes, and says what it was; nil where nothing had to be changed.
	change func(b *batch, org *ledger.Organization) (*deed, error)

	number int64 // of its entry, once it is committed; 0 where nothing had to be changed
}

// deed is what the audit log says of an act.
type deed struct {
	action string
	target string
	detail []byte // canonical object
}

// govern makes an administrative change as a caller who must be an admin.
func (s *Service) govern(ctx context.Context, caller *Caller, change func(b *batch, org *ledger.Organization) (*deed, error)) error {
	if err := caller.require(ledger.RoleAdmin); err != nil {
		return err
	}
	return s.committer.commit(ctx, &act{caller: caller, org: caller.Org, change: change})
}

// governStop is govern for a change that can make decisions stricter: it returns
// when nothing that was allowed before can begin any more.
func (s *Service) governStop(ctx context.Context, caller *Caller, change func(b *batch, org *ledger.Organization) (*deed, error)) error {
	if err := caller.require(ledger.RoleAdmin); err != nil {
		return err
	}
	return s.commitStop(ctx, &act{caller: caller, org: caller.Org, change: change})
}

func (a *act) tenant() ledger.OrgID { return a.org }

func (a *act) size() int { return smallOperation }

func (a *act) need(needs *store.Needs) {
	if a.caller != nil {
		needs.Keys = append(needs.Keys, a.caller.Key)
	}
	needs.Govern = append(needs.Govern, a.org)
	needs.Logs = append(needs.Logs, a.org)
	if a.needs != nil {
		a.needs(needs)
	}
}

func (a *act) plan(b *batch) error {
	actor := a.actor
	if a.caller != nil {
		if err := b.confirm(a.caller); err != nil {
			return err
		}
		actor = a.caller.actor()
	}
	before, err := b.org(a.org)
	if err != nil {
		return err
	}
	org := *before
	deed, err := a.change(b, &org)
	if err != nil || deed == nil {
		return err
	}
	if err := b.enact(actor, &org, deed); err != nil {
		return err
	}
	a.number = org.Controls.Act
	return nil
}

// enact seals an organization under the number of the act that changed it, and
// enters that act into the audit log.
func (b *batch) enact(actor ledger.Actor, org *ledger.Organization, d *deed) error {
	log, err := b.log(org.ID)
	if err != nil {
		return err
	}
	org.Controls.Act = log.Count + 1
	if err := org.Seal(b.service.keys); err != nil {
		b.broken = err
		return err
	}
	b.orgs[org.ID] = org
	return b.act(actor, org, d)
}

func (c *Caller) actor() ledger.Actor {
	return ledger.Actor{Key: c.Key, Name: c.Name, Role: string(c.Role)}
}

// org is an organization as the batch leaves it so far. One that is not as the last act has left it is refused: nothing is
// decided under settings that someone has put into the database, or put back.
func (b *batch) org(id ledger.OrgID) (*ledger.Organization, error) {
	if org := b.orgs[id]; org != nil {
		return org, nil
	}
	org := b.loaded.Orgs[id]
	if org == nil {
		return nil, ledger.ErrNotFound
	}
	if err := b.ahead(id); err != nil {
		return nil, err
	}
	if b.tampered(id) {
		return nil, errOrganization
	}
	return org, nil
}

// ahead refuses an organization whose audit log is older than it was known to be.
func (b *batch) ahead(id ledger.OrgID) error {
	if slices.Contains(b.loaded.Behind, id) {
		return evidence.ErrRolledBack
	}
	return nil
}

// log is an organization's audit log, which the operation must have named among its
// needs. One that is missing was removed: it is made with the organization.
func (b *batch) log(org ledger.OrgID) (*ledger.ActLog, error) {
	log := b.loaded.Logs[org]
	if log == nil {
		b.broken = fmt.Errorf("organization without audit log: %w", ledger.ErrStateTampered)
		return nil, b.broken
	}
	return log, nil
}

// act enters a deed into the audit log.
func (b *batch) act(actor ledger.Actor, org *ledger.Organization, d *deed) error {
	log, err := b.log(org.ID)
	if err != nil {
		return err
	}
	stored, err := log.Append(b.service.keys, org, ledger.Act{At: b.now, Actor: actor, Action: d.action, Target: d.target, Detail: d.detail})
	if err != nil {
		b.broken = err // the change stands in the batch already, and must not be written without its act
		return err
	}
	b.logs[org.ID] = true
	b.changes.NewActs = append(b.changes.NewActs, stored)
	return nil
}

// details writes the members of a deed's detail; names in canonical order.
func details(write func(*canon.ObjectWriter)) []byte {
	w := canon.BeginObject(nil)
	write(&w)
	return w.End()
}
