package service

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"countersign/internal/canon"
	"countersign/internal/evidence"
	"countersign/internal/fault"
	"countersign/internal/ledger"
	"countersign/internal/store"
	"countersign/internal/verify"
)

// act is the operation for an administrative change. All such changes go through it, so that
// a change and its audit log entry are written together.
type act struct {
	caller *Caller      // nil for an actor without a key
	actor  ledger.Actor // used if caller is nil
	org    ledger.OrgID
	needs  func(*store.Needs) // adds what change reads besides the organization; optional
	// change applies the change to a copy of the organization and to the batch. It returns
	// the audit log entry, or nil if nothing had to be changed.
	change func(b *batch, org *ledger.Organization) (*auditEntry, error)

	number int64 // result: number of the entry; 0 if nothing had to be changed
}

// auditEntry is the audit log entry of an act.
type auditEntry struct {
	action string
	target string
	detail []byte // canonical object
}

// govern makes an administrative change. The caller must be an admin.
func (s *shared) govern(ctx context.Context, caller *Caller, change func(b *batch, org *ledger.Organization) (*auditEntry, error)) error {
	if err := caller.require(ledger.RoleAdmin); err != nil {
		return err
	}
	return s.committer.commit(ctx, &act{caller: caller, org: caller.Org, change: change})
}

// governStop is govern for a change that can make decisions stricter. It returns once no
// action that was allowed before can begin.
func (s *shared) governStop(ctx context.Context, caller *Caller, change func(b *batch, org *ledger.Organization) (*auditEntry, error)) error {
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
	entry, err := a.change(b, &org)
	if err != nil || entry == nil {
		return err
	}
	if err := b.enact(actor, &org, entry); err != nil {
		return err
	}
	a.number = org.Controls.Act
	return nil
}

// enact seals an organization under the number of the act that changed it, and appends the
// act to the audit log.
func (b *batch) enact(actor ledger.Actor, org *ledger.Organization, entry *auditEntry) error {
	log, err := b.actLog(org.ID)
	if err != nil {
		return err
	}
	org.Controls.Act = log.Count + 1
	if err := org.Seal(b.service.keys); err != nil {
		b.broken = err
		return err
	}
	b.orgs[org.ID] = org
	return b.logAct(actor, org, entry)
}

func (c *Caller) actor() ledger.Actor {
	return ledger.Actor{Key: c.Key, Name: c.Name, Role: string(c.Role)}
}

// org returns an organization, including earlier changes of this batch. It refuses one that is
// not as the last act left it: nothing is decided under settings that were edited or reset in
// the database.
func (b *batch) org(id ledger.OrgID) (*ledger.Organization, error) {
	if org := b.orgs[id]; org != nil {
		return org, nil
	}
	org := b.loaded.Orgs[id]
	if org == nil {
		return nil, fault.ErrNotFound
	}
	if err := b.refuseRolledBack(id); err != nil {
		return nil, err
	}
	if b.tampered(id) {
		return nil, errOrganization
	}
	return org, nil
}

// refuseRolledBack refuses an organization whose audit log was rolled back.
func (b *batch) refuseRolledBack(id ledger.OrgID) error {
	if slices.Contains(b.loaded.Behind, id) {
		return evidence.ErrRolledBack
	}
	return nil
}

// actLog returns an organization's audit log, which the operation must have named among its
// needs. The log is created with the organization, so a missing one was deleted.
func (b *batch) actLog(org ledger.OrgID) (*ledger.ActLog, error) {
	log := b.loaded.Logs[org]
	if log == nil {
		b.broken = fmt.Errorf("organization without audit log: %w", ledger.ErrStateTampered)
		return nil, b.broken
	}
	return log, nil
}

// logAct appends an act to the audit log.
func (b *batch) logAct(actor ledger.Actor, org *ledger.Organization, entry *auditEntry) error {
	log, err := b.actLog(org.ID)
	if err != nil {
		return err
	}
	stored, err := log.Append(b.service.keys, org, ledger.Act{At: b.now, Actor: actor, Action: entry.action, Target: entry.target, Detail: entry.detail})
	if err != nil {
		b.broken = err // the change is already in the batch, and must not be written without its act
		return err
	}
	b.logs[org.ID] = true
	b.changes.NewActs = append(b.changes.NewActs, stored)
	return nil
}

// details encodes the detail of an audit log entry. The names must be in canonical order.
func details(write func(*canon.ObjectWriter)) []byte {
	w := canon.BeginObject(nil)
	write(&w)
	return w.End()
}

// writeChange writes a member with the value before and after a change. "" is written as
// null.
func writeChange(w *canon.ObjectWriter, name, from, to string) {
	change := canon.BeginObject(w.Name(name))
	change.StringOrNull("from", from)
	change.StringOrNull("to", to)
	w.Value(change.End())
}

// formatTime formats a time for the audit log; "" for nil.
func formatTime(at *ledger.Time) string {
	if at == nil {
		return ""
	}
	return at.String()
}

// organizationAuditEntry lists the changed settings with their old and new values.
func organizationAuditEntry(before, after *ledger.Organization) (*auditEntry, error) {
	was, err := settingsOf(before)
	if err != nil {
		return nil, err
	}
	is, err := settingsOf(after)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, settings := range []canon.Value{was, is} {
		for _, member := range settings.Members() {
			names = append(names, member.Name)
		}
	}
	slices.Sort(names)
	changed := canon.BeginObject(nil)
	for _, name := range slices.Compact(names) {
		from, _ := was.Get(name)
		to, _ := is.Get(name)
		if old, next := from.Append(nil), to.Append(nil); !bytes.Equal(old, next) {
			change := canon.BeginObject(changed.Name(name))
			change.Raw("from", old)
			change.Raw("to", next)
			changed.Value(change.End())
		}
	}
	return &auditEntry{action: ledger.ActOrganizationUpdate, target: after.Slug, detail: details(func(w *canon.ObjectWriter) {
		w.Raw("changed", changed.End())
	})}, nil
}

// settingsOf returns an organization's settings and name as one object. Settings that have
// their default are omitted.
func settingsOf(org *ledger.Organization) (canon.Value, error) {
	encoded, err := org.Settings.Encode()
	if err != nil {
		return canon.Value{}, err
	}
	settings, err := canon.Parse(encoded)
	if err != nil {
		return canon.Value{}, err
	}
	named := canon.BeginObject(nil)
	for _, member := range settings.Members() {
		if member.Name > "name" {
			break
		}
		named.Raw(member.Name, member.Value.Append(nil))
	}
	named.String("name", org.Name)
	for _, member := range settings.Members() {
		if member.Name > "name" {
			named.Raw(member.Name, member.Value.Append(nil))
		}
	}
	return canon.Parse(named.End())
}

// webhookAuditEntry describes an endpoint. Parts of its address that may be secret are
// removed.
func webhookAuditEntry(action string, record *store.WebhookRecord, from, to string) *auditEntry {
	return &auditEntry{action: action, target: record.ID.String(), detail: details(func(w *canon.ObjectWriter) {
		w.StringOrNull("description", record.Description)
		w.Strings("events", record.Events)
		if from != to {
			writeChange(w, "status", from, to)
		}
		w.String("url", shownURL(record.URL))
	})}
}

// shownURL removes the user and password, the fragment and the values of the query from an
// address, any of which may be a secret.
func shownURL(text string) string {
	address, err := url.Parse(text)
	if err != nil {
		return "unreadable"
	}
	address.User, address.Fragment, address.RawFragment = nil, "", ""
	const hidden = "redacted"
	query, err := url.ParseQuery(address.RawQuery)
	shown := make(url.Values)
	for name, values := range query {
		if slices.Contains(values, "") { // the name may be the secret
			name = hidden
		}
		shown.Set(name, hidden)
	}
	if err != nil {
		shown = url.Values{hidden: {hidden}}
	}
	address.RawQuery, address.ForceQuery = shown.Encode(), false
	return address.String()
}

func webhookStatus(record *store.WebhookRecord) string {
	switch {
	case record.DeletedAt != nil:
		return "deleted"
	case record.DisabledAt != nil:
		return "disabled"
	default:
		return "active"
	}
}

// signingKeyAuditEntry describes a signing key and, if the last active key was ended, its
// successor.
func signingKeyAuditEntry(action string, key *store.SigningKeyRecord, from string, successor *store.SigningKeyRecord) *auditEntry {
	return &auditEntry{action: action, target: key.ID.String(), detail: details(func(w *canon.ObjectWriter) {
		w.StringOrNull("name", key.Name)
		writeChange(w, "status", from, key.Status)
		if successor != nil {
			w.String("successor_id", successor.ID.String())
		}
	})}
}

// approvalAuditEntry describes a step of an approval, with the action and its chain, and the Slack
// member who made it; "" if it was not made in Slack.
func approvalAuditEntry(action string, chain *ledger.Chain, before, after *ledger.Approval, slackMember string) *auditEntry {
	return &auditEntry{action: action, target: after.ID.String(), detail: details(func(w *canon.ObjectWriter) {
		w.String("action_name", after.ActionName)
		w.String("action_type", after.ActionType)
		w.String("agent_name", after.AgentName)
		w.String("chain_id", after.Chain.String())
		w.StringOrNull("chain_name", chain.Name)
		if by := after.DeniedBy; by != nil {
			w.StringOrNull("policy_name", by.PolicyName)
			w.String("policy_version", by.PolicyVersion)
		}
		if slackMember != "" {
			w.String("slack_member", slackMember)
		}
		writeChange(w, "status", string(before.Status), string(after.Status))
	})}
}

// auditLogService lists audit logs, and follows what other processes append to them.
type auditLogService struct {
	*shared
	findings    *findingService
	provenActs  provenActs
	logsChanged chan struct{} // receives a value when an audit log has grown
}

// Acts lists the audit log, newest first, proven by its authenticated end. An act that is
// missing, changed or inserted keeps its position and is marked. Older acts are marked, too,
// unless this process has proven them before: the hash that would prove them is lost.
func (s *auditLogService) Acts(ctx context.Context, caller *Caller, before int64, limit int) ([]*ledger.StoredAct, error) {
	if err := s.authorize(ctx, caller, ledger.RoleAdmin); err != nil {
		return nil, err
	}
	acts, broken, err := s.listActs(ctx, caller.Org, before, limit)
	if err != nil {
		return nil, visible(err)
	}
	if broken != "" {
		s.log.Error(tamperedLog, "of", "the audit log")
		s.findings.noteFinding(pendingFinding{org: caller.Org, tampering: &verify.Tampering{Check: ledger.CheckAuditLog, Place: broken}, notify: true})
	}
	return acts, nil
}

// listActs returns a page of the audit log, and what is wrong with it; "" for nothing.
func (s *auditLogService) listActs(ctx context.Context, org ledger.OrgID, before int64, limit int) (page []*ledger.StoredAct, broken string, err error) {
	end, err := s.actLogEnd(ctx, org)
	if err != nil {
		return nil, "", err
	}
	stored, err := s.store.Acts(ctx, org, before, limit)
	if err != nil {
		return nil, "", err
	}
	if end == nil {
		if len(stored) == 0 {
			return nil, "", fmt.Errorf("the audit log's end is missing or fails its authenticator: %w", ledger.ErrStateTampered)
		}
		page, _ = fillActGaps(stored, 0, limit)
		markActs(page, nil)
		return page, "the audit log's end is missing or fails its authenticator", nil
	}
	newest := end.Count
	if before > 0 {
		newest = min(newest, before-1)
	}
	page, strange := fillActGaps(stored, newest, limit)
	if strange {
		broken = "an act was inserted before the first"
	}
	if len(page) == 0 {
		return page, broken, nil
	}
	if page[0].Sequence > end.Count { // appended since the end was read, or forged
		if end, err = s.actLogEnd(ctx, org); err != nil {
			return nil, "", err
		}
	}
	proven := make(map[int64][32]byte, len(page))
	if end != nil {
		if err := s.proveActs(ctx, end, page[0].Sequence, page[len(page)-1].Sequence, proven); err != nil {
			return nil, "", err
		}
	}
	if first := markActs(page, proven); first != 0 {
		broken = fmt.Sprintf("act %d is missing, out of order or changed", first)
	}
	return page, broken, nil
}

// actLogEnd returns the end of an audit log; nil if it is missing or fails its authenticator.
func (s *auditLogService) actLogEnd(ctx context.Context, org ledger.OrgID) (*ledger.ActLog, error) {
	end, err := s.store.ActLog(ctx, org)
	if errors.Is(err, store.ErrNotFound) {
		return nil, nil
	}
	if err != nil || !end.Authentic(s.keys) {
		return nil, err
	}
	return end, nil
}

// fillActGaps inserts an act without a body for each missing sequence, down from the newest
// act that must exist. Acts are numbered from 1: any others are reported as strange and
// omitted.
func fillActGaps(stored []*ledger.StoredAct, newest int64, limit int) (page []*ledger.StoredAct, strange bool) {
	for _, act := range stored {
		if act.Sequence < 1 {
			strange = true
			continue
		}
		for ; newest > act.Sequence && len(page) < limit; newest-- {
			page = append(page, &ledger.StoredAct{Org: act.Org, Sequence: newest})
		}
		if len(page) >= limit {
			return page, strange
		}
		page = append(page, act)
		newest = min(newest, act.Sequence-1)
	}
	for ; newest > 0 && len(page) < limit; newest-- {
		page = append(page, &ledger.StoredAct{Sequence: newest})
	}
	return page, strange
}

// markActs marks the acts that are not proven. It returns the newest of them, 0 for none.
func markActs(page []*ledger.StoredAct, proven map[int64][32]byte) (first int64) {
	for i, act := range page {
		if hash, ok := proven[act.Sequence]; ok && hash == act.Hash() {
			continue
		}
		page[i] = &ledger.StoredAct{Org: act.Org, Sequence: act.Sequence, Tampered: true}
		if first == 0 {
			first = act.Sequence
		}
	}
	return first
}

// actPoint is an act whose hash is proven by an authenticated end.
type actPoint struct {
	sequence int64
	hash     [32]byte
}

// proveActs collects the hashes of the acts from top down to bottom that can be proven. It
// follows the log backwards, each act by the hash in its successor, from the nearest act that
// was proven before, or from the end. Where the log is broken, it continues at the next older
// act that was proven before.
func (s *auditLogService) proveActs(ctx context.Context, end *ledger.ActLog, top, bottom int64, proven map[int64][32]byte) error {
	if end.Last == nil {
		return nil
	}
	last := actPoint{end.Count, *end.Last}
	from, known := s.provenActs.above(end.Org, top, end.Count)
	if !known {
		from = last
	}
	broken, err := s.followActs(ctx, end.Org, from, top, bottom, proven)
	if err == nil && broken != 0 && known {
		// The database may have been restored since: the end is authoritative.
		broken, err = s.followActs(ctx, end.Org, last, top, bottom, proven)
	}
	for err == nil && broken != 0 {
		from, known := s.provenActs.below(end.Org, broken)
		if !known || from.sequence < bottom {
			return nil
		}
		broken, err = s.followActs(ctx, end.Org, from, top, bottom, proven)
	}
	return err
}

// followActs follows the log from a proven act down to bottom. It returns the sequence at
// which the log is broken, 0 for none.
func (s *auditLogService) followActs(ctx context.Context, org ledger.OrgID, at actPoint, top, bottom int64, proven map[int64][32]byte) (broken int64, err error) {
	const page = 500 // acts in memory at a time
	for at.sequence >= bottom {
		acts, err := s.store.Acts(ctx, org, at.sequence+1, int(min(page, at.sequence-bottom+1)))
		if err != nil {
			return 0, err
		}
		if len(acts) == 0 {
			return at.sequence, nil
		}
		for _, act := range acts {
			if act.Sequence != at.sequence || act.Hash() != at.hash {
				return at.sequence, nil
			}
			s.provenActs.add(org, at)
			if at.sequence <= top {
				proven[at.sequence] = at.hash
			}
			at.sequence--
			if at.sequence < bottom {
				return 0, nil
			}
			previous := act.Previous()
			if previous == nil {
				return at.sequence, nil
			}
			at.hash = *previous
		}
	}
	return 0, nil
}

const (
	provenEvery   = 100    // one in so many acts is remembered
	maxProvenActs = 50_000 // of all organizations together
)

// provenActs remembers some of the acts that were proven, so that listing an old page of a
// long log need not start at the end each time.
type provenActs struct {
	mu    sync.Mutex // guards the fields below
	acts  map[ledger.OrgID]map[int64][32]byte
	count int
}

func (p *provenActs) add(org ledger.OrgID, point actPoint) {
	if point.sequence%provenEvery != 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.acts == nil || p.count >= maxProvenActs {
		p.acts, p.count = make(map[ledger.OrgID]map[int64][32]byte), 0
	}
	if p.acts[org] == nil {
		p.acts[org] = make(map[int64][32]byte)
	}
	if _, known := p.acts[org][point.sequence]; !known {
		p.count++
	}
	p.acts[org][point.sequence] = point.hash
}

// above returns the first remembered act at or after a sequence, if the log has it.
func (p *provenActs) above(org ledger.OrgID, sequence, count int64) (actPoint, bool) {
	if sequence > count {
		return actPoint{}, false
	}
	sequence = (sequence + provenEvery - 1) / provenEvery * provenEvery
	p.mu.Lock()
	defer p.mu.Unlock()
	hash, known := p.acts[org][sequence]
	return actPoint{sequence, hash}, known && sequence <= count
}

// below returns the last remembered act before a sequence.
func (p *provenActs) below(org ledger.OrgID, sequence int64) (found actPoint, known bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for at, hash := range p.acts[org] {
		if at < sequence && at > found.sequence {
			found, known = actPoint{at, hash}, true
		}
	}
	return found, known
}

// logPoll is how often the ends of the audit logs in use are read, so that this process sees
// what others have appended.
const logPoll = time.Second

// noteLogs records outside the database how far audit logs have grown, before the callers get
// their answers. A failure is only logged: the commit is done, and a server writes the file
// again each second.
func (s *auditLogService) noteLogs(logs []*ledger.ActLog) {
	if len(logs) == 0 {
		return
	}
	if err := s.judge.Heads.NoteActs(logs); err != nil {
		s.log.Error("the end of the audit log could not be recorded outside the database: a rollback of the database would go unnoticed", "error", err)
	}
}

// changed handles a change signal of the store. It must not block.
func (s *Service) changed(id uuid.UUID) {
	s.waiters.wake(id)
	if s.store.Follows(ledger.OrgID{UUID: id}) {
		nudge(s.logsChanged)
	}
}

// followLogs keeps the known ends of the audit logs current until ctx ends.
func (s *auditLogService) followLogs(ctx context.Context) {
	ticker := time.NewTicker(logPoll)
	defer ticker.Stop()
	logged := make(map[ledger.OrgID]string) // so that each error is logged once
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		case <-s.logsChanged:
		}
		troubles, err := s.store.FollowLogs(ctx)
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			s.log.Warn("following the audit logs failed: retrying within a second", "error", err)
			continue
		}
		now := make(map[ledger.OrgID]string, len(troubles))
		for _, trouble := range troubles {
			now[trouble.Org] = trouble.Err.Error()
			if logged[trouble.Org] == now[trouble.Org] {
				continue
			}
			// The self-check turns it into a finding.
			s.log.Error("an audit log was rolled back or replaced: run countersign doctor", "organization", trouble.Org.String(), "error", trouble.Err)
		}
		logged = now
	}
}
