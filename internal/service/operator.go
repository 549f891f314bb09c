package service

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"countersign/internal/canon"
	"countersign/internal/evidence"
	"countersign/internal/fault"
	"countersign/internal/ledger"
	"countersign/internal/store"
	"countersign/internal/verify"
)

// Operator provides the use cases of the command line. They need no API key, because anyone
// who can run them can read the database files anyway.
type Operator struct{ service *Service }

// Operator returns the use cases of the operator.
func (s *Service) Operator() *Operator { return &Operator{s} }

// Unsealed counts the rows without an authenticator.
func (o *Operator) Unsealed(ctx context.Context) (int, error) {
	orgs, err := o.Organizations(ctx)
	if err != nil {
		return 0, err
	}
	total := 0
	for _, org := range orgs {
		unsealed, err := o.service.store.Unsealed(ctx, org.ID)
		if err != nil {
			return 0, visible(err)
		}
		log, err := o.service.store.ActLog(ctx, org.ID)
		if err != nil && !errors.Is(err, store.ErrNotFound) {
			return 0, visible(err)
		}
		if err == nil && log.Begins() {
			unsealed++
		}
		total += unsealed
	}
	return total, nil
}

// TrustExisting seals rows that were written before rows had authenticators or named the act
// that last changed them, and begins the audit logs of organizations that have none. It trusts
// what it finds, so the operator runs it once, and a server never does.
func (o *Operator) TrustExisting(ctx context.Context, trust evidence.Trust) (int, error) {
	orgs, err := o.Organizations(ctx)
	if err != nil {
		return 0, err
	}
	total := 0
	for _, org := range orgs {
		begin := &beginLog{org: org.ID}
		if err := o.service.committer.commit(ctx, begin); err != nil {
			return total, err
		}
		taken, err := o.service.store.SealExisting(ctx, org.ID, trust)
		if err != nil {
			return total, visible(err)
		}
		if begin.begun {
			total++
		}
		if total += taken; taken == 0 {
			continue
		}
		err = o.service.committer.commit(ctx, &act{actor: ledger.ActorOperator, org: org.ID, change: func(*batch, *ledger.Organization) (*auditEntry, error) {
			return &auditEntry{action: ledger.ActRowsTrust, target: org.Slug, detail: details(func(w *canon.ObjectWriter) { w.Int("rows", int64(taken)) })}, nil
		}})
		if err != nil {
			return total, err
		}
	}
	return total, nil
}

// beginLog begins the audit log of an organization that has none yet.
type beginLog struct {
	org   ledger.OrgID
	begun bool // result
}

func (o *beginLog) tenant() ledger.OrgID { return o.org }

func (o *beginLog) size() int { return smallOperation }

func (o *beginLog) need(needs *store.Needs) {
	needs.Govern = append(needs.Govern, o.org)
	needs.Logs = append(needs.Logs, o.org)
	needs.SigningKeys = append(needs.SigningKeys, o.org)
}

func (o *beginLog) plan(b *batch) error {
	before, log := b.loaded.Orgs[o.org], b.loaded.Logs[o.org]
	if before == nil || log == nil || !log.Begins() {
		return nil
	}
	log.Begin()
	o.begun = true
	begun := &auditEntry{action: ledger.ActLogBegin, target: before.Slug}
	if len(b.loaded.SigningKeys[o.org]) == 0 && b.service.secrets != nil {
		key, err := b.service.newSigningKey(o.org, "")
		if err != nil {
			return err
		}
		b.putSigningKey(key)
		begun.detail = details(func(w *canon.ObjectWriter) { w.String("signing_key_id", key.ID.String()) })
	}
	org := new(ledger.Organization)
	*org = *before
	return b.enact(ledger.ActorOperator, org, begun)
}

// CreateOrganization creates an organization with a first admin key.
func (o *Operator) CreateOrganization(ctx context.Context, slug, name string) (*ledger.Organization, *NewKey, error) {
	if err := ledger.CheckSlug(slug); err != nil {
		return nil, nil, err
	}
	s := o.service
	if name == "" {
		name = slug
	}
	org := &ledger.Organization{
		ID:   ledger.OrgID{UUID: s.timedID(s.now())},
		Slug: slug, Name: name, Settings: ledger.DefaultSettings(), CreatedAt: s.now(),
		Controls: ledger.Controls{Act: 1}, // the act that creates it
	}
	if err := org.Seal(s.keys); err != nil {
		return nil, nil, err
	}
	key, err := s.newKey(org.ID, &KeyRequest{Name: "first admin", Role: ledger.RoleAdmin})
	if err != nil {
		return nil, nil, err
	}
	with := &store.Changes{NewKeys: []*ledger.KeyRecord{key.Record}}
	if s.secrets != nil {
		signing, err := s.newSigningKey(org.ID, "")
		if err != nil {
			return nil, nil, err
		}
		with.SigningKeys = append(with.SigningKeys, signing)
	}
	log := ledger.NewActLog(org.ID)
	created, err := log.Append(s.keys, org, ledger.Act{At: s.now(), Actor: ledger.ActorOperator, Action: ledger.ActOrganizationCreate, Target: slug,
		Detail: details(func(w *canon.ObjectWriter) {
			w.String("api_key_id", key.Record.ID.String())
			w.String("name", name)
			for _, signing := range with.SigningKeys {
				w.String("signing_key_id", signing.ID.String())
			}
		})})
	if err != nil {
		return nil, nil, err
	}
	with.NewActs, with.Logs = []*ledger.StoredAct{created}, []*ledger.ActLog{log}
	if err := s.storeOrganization(ctx, org, with); err != nil {
		return nil, nil, err
	}
	s.noteLogs(with.Logs) //nolint:contextcheck // a commit is recorded whether or not the caller still waits
	return org, key, nil
}

// creationTries bounds how often an organization is stored anew. The pause before the second
// try is firstCreationPause; each later one is twice as long.
const (
	creationTries      = 5
	firstCreationPause = 100 * time.Millisecond
)

// storeOrganization stores a new organization. Its first key is shown once and nobody repeats the
// request, so it tries again if the store cannot be reached, and finds out how a try ended whose
// outcome is unknown.
func (s *Service) storeOrganization(ctx context.Context, org *ledger.Organization, with *store.Changes) error {
	unknown, pause := false, firstCreationPause
	for try := 1; ; try++ {
		err := s.store.CreateOrganization(ctx, org, ledger.NewHead(org.ID, s.keys), with)
		if unknown && errors.Is(err, store.ErrExists) {
			var stored *ledger.Organization
			if stored, err = s.store.OrganizationBySlug(ctx, org.Slug); err == nil && stored.ID != org.ID {
				err = store.ErrExists
			}
		}
		if errors.Is(err, store.ErrExists) {
			return fault.Errorf(fault.CodeOrganizationExists, "an organization with the slug %q exists already", org.Slug)
		}
		unknown = unknown || errors.Is(err, store.ErrOutcomeUnknown)
		if passing := unknown || errors.Is(err, store.ErrUnavailable); err == nil || !passing || try == creationTries {
			return visible(err)
		}
		select {
		case <-time.After(pause):
			pause *= 2
		case <-ctx.Done():
			return visible(err)
		}
	}
}

// FirstStart holds what Bootstrap created. Its secrets are shown once.
type FirstStart struct {
	Organization *ledger.Organization
	Key          *NewKey
	SignIn       ledger.Secret // empty if the link could not be stored
}

// Bootstrap creates the organization "default" in an empty store. It returns nil if there is
// an organization already; another replica may create it concurrently. Without a sign-in link
// the first start is still complete: the key must be shown, and makes another link.
func (o *Operator) Bootstrap(ctx context.Context) (*FirstStart, error) {
	orgs, err := o.service.store.Organizations(ctx)
	if err != nil {
		return nil, visible(err)
	}
	if len(orgs) > 0 {
		return nil, nil
	}
	org, key, err := o.CreateOrganization(ctx, "default", "Default")
	var own *fault.Error
	if errors.As(err, &own) && own.Code == fault.CodeOrganizationExists {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	first := &FirstStart{Organization: org, Key: key}
	if first.SignIn, err = o.service.createSignIn(ctx, nil, org.ID, key.Record.ID); err != nil {
		o.service.log.Warn("the first sign-in link could not be made: countersign keys sign-in makes another", "key_id", key.Record.ID, "error", err)
	}
	return first, nil
}

// Organizations lists all organizations.
func (o *Operator) Organizations(ctx context.Context) ([]*ledger.Organization, error) {
	orgs, err := o.service.store.Organizations(ctx)
	return orgs, visible(err)
}

// Organization returns an organization by its slug; without a slug, the only one there is.
func (o *Operator) Organization(ctx context.Context, slug string) (*ledger.Organization, error) {
	if slug == "" {
		return o.onlyOrganization(ctx)
	}
	org, err := o.service.store.OrganizationBySlug(ctx, slug)
	if errors.Is(err, store.ErrNotFound) {
		return nil, fault.Errorf(fault.CodeNotFound, "there is no organization %q; countersign orgs list shows those there are", slug)
	}
	return org, visible(err)
}

func (o *Operator) onlyOrganization(ctx context.Context) (*ledger.Organization, error) {
	orgs, err := o.Organizations(ctx)
	if err != nil {
		return nil, err
	}
	if len(orgs) != 1 {
		return nil, fault.Errorf(fault.CodeInvalid, "there are %d organizations: name one with --org; countersign orgs list shows them", len(orgs))
	}
	return orgs[0], nil
}

// CreateKey issues an API key.
func (o *Operator) CreateKey(ctx context.Context, slug string, request *KeyRequest) (*NewKey, error) {
	org, err := o.Organization(ctx, slug)
	if err != nil {
		return nil, err
	}
	return o.service.issueKey(ctx, nil, org.ID, request)
}

// Keys lists an organization's keys.
func (o *Operator) Keys(ctx context.Context, slug string) ([]*ledger.KeyRecord, error) {
	org, err := o.Organization(ctx, slug)
	if err != nil {
		return nil, err
	}
	keys, err := o.service.store.AllKeys(ctx, org.ID)
	return keys, visible(err)
}

// RotateKey replaces an API key's secret.
func (o *Operator) RotateKey(ctx context.Context, slug string, rotation *Rotation) (*NewKey, error) {
	org, err := o.Organization(ctx, slug)
	if err != nil {
		return nil, err
	}
	return o.service.rotateKey(ctx, nil, org.ID, rotation)
}

// UpdateKey changes who signs in as an API key, or who decides with it in Slack.
func (o *Operator) UpdateKey(ctx context.Context, slug string, update *KeyUpdate) (*ledger.KeyRecord, error) {
	org, err := o.Organization(ctx, slug)
	if err != nil {
		return nil, err
	}
	return o.service.updateKey(ctx, nil, org.ID, update)
}

// RevokeKey revokes an API key.
func (o *Operator) RevokeKey(ctx context.Context, slug string, id ledger.KeyID) (*ledger.KeyRecord, error) {
	org, err := o.Organization(ctx, slug)
	if err != nil {
		return nil, err
	}
	return o.service.revokeKey(ctx, nil, org.ID, id)
}

// SignInLink creates a one-time link for an API key. The zero id stands for the oldest active
// admin key.
func (o *Operator) SignInLink(ctx context.Context, slug string, id ledger.KeyID) (ledger.Secret, error) {
	keys, err := o.Keys(ctx, slug)
	if err != nil {
		return ledger.Secret{}, err
	}
	for _, key := range keys {
		wanted := key.ID == id || (id == ledger.KeyID{} && key.Role == ledger.RoleAdmin)
		if wanted && key.Active(o.service.now()) {
			return o.service.createSignIn(ctx, nil, key.Org, key.ID)
		}
	}
	return ledger.Secret{}, fault.Errorf(fault.CodeNotFound, "there is no active key with that id; countersign keys list shows those there are")
}

// Fingerprinter identifies master keys without revealing them.
type Fingerprinter interface {
	IDs() []string
	Fingerprint(keyID string) ([32]byte, bool)
}

// AdoptKeys compares the keys on the ring with those that have signed in this store, and
// records new ones. A server must not run without a key that has signed in its store: that
// key's receipts would seem forged.
func (o *Operator) AdoptKeys(ctx context.Context, ring Fingerprinter) error {
	known, err := o.service.store.KeyChecks(ctx)
	if err != nil {
		return visible(err)
	}
	for id, fingerprint := range known {
		held, ok := ring.Fingerprint(id)
		if !ok {
			return fmt.Errorf("the key file lacks the master key %s, which has signed in this store: restore the key file that belongs to it", id)
		}
		if held != fingerprint {
			return fmt.Errorf("the key file's master key %s is not the one that has signed in this store: restore the key file that belongs to it", id)
		}
	}
	for _, id := range ring.IDs() {
		if _, ok := known[id]; ok {
			continue
		}
		fingerprint, _ := ring.Fingerprint(id)
		if err := o.service.store.AddKeyCheck(ctx, id, fingerprint); err != nil {
			return visible(err)
		}
	}
	return nil
}

// RecordRotation records a rotation of the master key in the audit log of every organization.
// A log that cannot be written does not block the others.
func (o *Operator) RecordRotation(ctx context.Context, previous, current string) error {
	orgs, err := o.Organizations(ctx)
	if err != nil {
		return err
	}
	var failed []error
	for _, org := range orgs {
		err := o.service.committer.commit(ctx, &act{actor: ledger.ActorOperator, org: org.ID, change: func(*batch, *ledger.Organization) (*auditEntry, error) {
			return &auditEntry{action: ledger.ActMasterKeyRotate, target: current, detail: details(func(w *canon.ObjectWriter) { writeChange(w, "key", previous, current) })}, nil
		}})
		if err != nil {
			failed = append(failed, fmt.Errorf("the audit log of %s does not say that the master key was rotated: %w", org.Slug, err))
		}
	}
	return errors.Join(failed...)
}

// Bounds of one import. A larger one must be split.
const (
	MaxImportedApprovals = 5_000
	MaxImportBytes       = 16 << 20
	maxFaultyLines       = 100 // listed in the error
)

// Import is the result of an import of approvals.
type Import struct {
	ID       uuid.UUID // zero if nothing was new
	Imported int
	Known    int                       // imported before
	Keys     []*store.SigningKeyRecord // added to the registry
}

// importLine is an approval with its line number.
type importLine struct {
	*ledger.ImportedApproval
	number int
}

// faultyLines collects the faults of an import. If there are any, nothing is imported.
type faultyLines struct {
	faults []string
	more   int // faults that are not listed
}

func (f *faultyLines) add(line int, err error) {
	if len(f.faults) == maxFaultyLines {
		f.more++
		return
	}
	f.faults = append(f.faults, fmt.Sprintf("line %d: %s", line, reasonOf(err)))
}

// reasonOf formats an error as one line of text.
func reasonOf(err error) string {
	var own *fault.Error
	if !errors.As(err, &own) || len(own.Fields) == 0 {
		return err.Error()
	}
	reasons := make([]string, len(own.Fields))
	for i, field := range own.Fields {
		reasons[i] = strings.TrimSpace(field.Pointer + " " + field.Detail)
	}
	return strings.Join(reasons, "; ")
}

func (f *faultyLines) err() error {
	if len(f.faults) == 0 {
		return nil
	}
	more := ""
	if f.more > 0 {
		more = fmt.Sprintf("\nand %d more lines", f.more)
	}
	return fault.Errorf(fault.CodeInvalid, "nothing was imported: %d lines are faulty\n%s%s", len(f.faults)+f.more, strings.Join(f.faults, "\n"), more)
}

// readImport reads JSON lines. Blank lines are skipped, but count in line numbers.
func readImport(in io.Reader) ([]importLine, error) {
	limited := &io.LimitedReader{R: in, N: MaxImportBytes + 1}
	lines := bufio.NewReaderSize(limited, ledger.MaxImported+2)
	var found []importLine
	var faulty faultyLines
	for number := 1; ; number++ {
		line, err := lines.ReadSlice('\n')
		long := errors.Is(err, bufio.ErrBufferFull)
		for errors.Is(err, bufio.ErrBufferFull) {
			_, err = lines.ReadSlice('\n')
		}
		if err != nil && !errors.Is(err, io.EOF) {
			return nil, fmt.Errorf("read the approvals: %w", err)
		}
		if limited.N <= 0 {
			return nil, fault.Errorf(fault.CodeInvalid, "an import has at most %d bytes: split it", MaxImportBytes)
		}
		switch text := bytes.TrimSpace(line); {
		case long || len(text) > ledger.MaxImported:
			faulty.add(number, fmt.Errorf("a line has at most %d bytes", ledger.MaxImported))
		case len(text) > 0:
			if len(found) == MaxImportedApprovals {
				return nil, fault.Errorf(fault.CodeInvalid, "an import has at most %d approvals: split it", MaxImportedApprovals)
			}
			imported, fault := ledger.ParseImported(text)
			if fault != nil {
				faulty.add(number, fault)
				break
			}
			found = append(found, importLine{imported, number})
		}
		if err != nil {
			break
		}
	}
	return distinctLines(found, &faulty)
}

// distinctLines removes duplicates, and refuses lines with the same id but other content.
func distinctLines(lines []importLine, faulty *faultyLines) ([]importLine, error) {
	first := make(map[ledger.ApprovalID]importLine, len(lines))
	var distinct []importLine
	for _, line := range lines {
		earlier, known := first[line.ID]
		switch {
		case !known:
			first[line.ID] = line
			distinct = append(distinct, line)
		case !bytes.Equal(earlier.Record, line.Record) || !bytes.Equal(earlier.Signature, line.Signature) || !earlier.Public.Equal(line.Public):
			faulty.add(line.number, fmt.Errorf("the approval is on line %d already, with another record, signature or key", earlier.number))
		}
	}
	if err := faulty.err(); err != nil {
		return nil, err
	}
	if len(distinct) == 0 {
		return nil, fault.Errorf(fault.CodeInvalid, "there is no approval to import: each line is a JSON object of decision_record, signature and public_key")
	}
	slices.SortFunc(distinct, func(a, b importLine) int { return bytes.Compare(a.ID.UUID[:], b.ID.UUID[:]) })
	return distinct, nil
}

// ImportApprovals stores approvals that were decided and signed elsewhere: all of them or
// none. Approvals that were imported before are left unchanged. They allow no action. Their
// keys are registered as historical.
func (o *Operator) ImportApprovals(ctx context.Context, slug string, in io.Reader) (*Import, error) {
	lines, err := readImport(in)
	if err != nil {
		return nil, err
	}
	org, err := o.Organization(ctx, slug)
	if err != nil {
		return nil, err
	}
	orgs, err := o.Organizations(ctx)
	if err != nil {
		return nil, err
	}
	op := &importing{org: org.ID, lines: lines, others: make(map[ledger.OrgID]bool)}
	for _, other := range orgs {
		op.others[other.ID] = other.ID != org.ID
	}
	if err := o.service.committer.commit(ctx, op); err != nil {
		return nil, err
	}
	return &op.done, nil
}

// importing is the operation for an import: approvals, new keys and their acts.
type importing struct {
	org    ledger.OrgID
	lines  []importLine          // sorted by id
	others map[ledger.OrgID]bool // other organizations, whose approvals are refused
	done   Import                // result
}

func (i *importing) tenant() ledger.OrgID { return i.org }

func (i *importing) size() int {
	size := smallOperation
	for _, line := range i.lines {
		size += len(line.Record)
	}
	return size
}

func (i *importing) need(needs *store.Needs) {
	needs.Govern = append(needs.Govern, i.org)
	needs.Logs = append(needs.Logs, i.org)
	needs.SigningKeys = append(needs.SigningKeys, i.org)
	for _, line := range i.lines {
		needs.Approvals = append(needs.Approvals, line.ID)
		needs.Imported = append(needs.Imported, line.ID)
	}
}

func (i *importing) plan(b *batch) error {
	i.done = Import{}
	if _, err := b.org(i.org); err != nil {
		return err
	}
	registry := b.loaded.SigningKeys[i.org]
	if !evidence.AllAuthentic(registry) {
		return errRegistry
	}
	keys := byPublic(registry)
	fresh, err := i.fresh(b, keys)
	if err != nil || len(fresh) == 0 {
		return err
	}
	for _, line := range fresh {
		if keys[string(line.Public)] == nil {
			key := &store.SigningKeyRecord{
				ID: ledger.SigningKeyID{UUID: b.service.timedID(b.now)}, Org: i.org, Public: line.Public, Status: ledger.SigningHistorical, CreatedAt: b.now,
			}
			keys[string(line.Public)] = key
			i.done.Keys = append(i.done.Keys, key)
		}
	}
	if free := maxSigningKeys - len(registry); len(i.done.Keys) > free {
		return fault.Errorf(fault.CodeInvalid, "the import brings %d keys, and the registry has room for %d more", len(i.done.Keys), free)
	}
	return i.write(b, fresh, keys)
}

// byPublic indexes keys by their public halves. Of several, it prefers one that the service
// holds or that is revoked, then the oldest.
func byPublic(registry []*store.SigningKeyRecord) map[string]*store.SigningKeyRecord {
	keys := make(map[string]*store.SigningKeyRecord, len(registry))
	for _, key := range registry {
		if keys[string(key.Public)] == nil || key.Private != nil || key.Status == ledger.SigningRevoked {
			keys[string(key.Public)] = key
		}
	}
	return keys
}

// fresh returns the approvals that are not stored yet. It checks all lines before anything is
// changed.
func (i *importing) fresh(b *batch, keys map[string]*store.SigningKeyRecord) ([]importLine, error) {
	var fresh []importLine
	var faulty faultyLines
	for _, line := range i.lines {
		known, key := b.loaded.Imported[line.ID], keys[string(line.Public)]
		switch {
		case b.tampered(line.ID):
			return nil, fmt.Errorf("an imported approval fails its authenticator: %w", ledger.ErrStateTampered)
		case b.loaded.Approvals[line.ID] != nil:
			faulty.add(line.number, errors.New("an approval with this id was asked for here"))
		case i.others[line.Org]:
			faulty.add(line.number, errors.New("the approval is one of another organization of this service"))
		case key != nil && key.Private != nil:
			faulty.add(line.number, errors.New("the approval is signed with a key of this service: what it signs is not imported"))
		case known == nil:
			fresh = append(fresh, line)
		case known.Org != i.org || !bytes.Equal(known.Record, line.Record) || !bytes.Equal(known.Signature, line.Signature):
			faulty.add(line.number, errors.New("another approval was imported under this id"))
		default:
			i.done.Known++
		}
	}
	return fresh, faulty.err()
}

// write adds the keys and the approvals with their acts to the batch.
func (i *importing) write(b *batch, fresh []importLine, keys map[string]*store.SigningKeyRecord) error {
	for _, key := range i.done.Keys {
		b.putSigningKey(key)
		if err := i.act(b, signingKeyAuditEntry(ledger.ActSigningKeyImport, key, "", nil)); err != nil {
			return err
		}
	}
	i.done.ID, i.done.Imported = b.service.timedID(b.now), len(fresh)
	digest := evidence.NewImportDigest()
	for _, line := range fresh {
		record := &store.ImportedApproval{
			ID: line.ID, Org: i.org, Import: i.done.ID, Key: keys[string(line.Public)].ID, Record: line.Record, Signature: line.Signature, ImportedAt: b.now,
		}
		digest.Add(record)
		b.changes.NewImported = append(b.changes.NewImported, record)
		b.loaded.Imported[line.ID] = record
	}
	return i.act(b, &auditEntry{action: ledger.ActApprovalsImport, target: i.done.ID.String(), detail: details(func(w *canon.ObjectWriter) {
		w.Int("approvals", digest.Count)
		w.String("sha256", digest.Sum())
	})})
}

// act appends one of the acts of the import to the audit log.
func (i *importing) act(b *batch, entry *auditEntry) error {
	before, err := b.org(i.org)
	if err != nil {
		return err
	}
	org := *before
	return b.enact(ledger.ActorOperator, &org, entry)
}

// ImportedApproval is an approval that was decided elsewhere, with its verification.
type ImportedApproval struct {
	*ledger.Verification
	ImportedAt ledger.Time // 0 if the record is not authentic
}

// ImportedApprovals lists the organization's imported approvals by id, after the given one.
func (s *approvalService) ImportedApprovals(ctx context.Context, caller *Caller, after ledger.ApprovalID, limit int) ([]*ImportedApproval, error) {
	if err := s.authorize(ctx, caller, ledger.RoleMember); err != nil {
		return nil, err
	}
	records, err := s.store.ImportedApprovals(ctx, caller.Org, after, limit)
	if err != nil {
		return nil, visible(err)
	}
	imported := make([]*ImportedApproval, len(records))
	for n, record := range records {
		v, err := s.judge.Approvals.VerifyImported(ctx, record)
		if err != nil {
			return nil, visible(err)
		}
		imported[n] = &ImportedApproval{Verification: v, ImportedAt: record.ImportedAt}
	}
	return imported, nil
}

// storedApproval is an approval of this service or an imported one.
type storedApproval struct {
	org   ledger.OrgID
	judge func(context.Context) (*ledger.Verification, error)
	// hash returns the hash of the decision record; false if there is none, or it is not
	// authentic.
	hash func() ([32]byte, bool, error)
}

// findApproval finds an approval of either kind by its id.
func (s *approvalService) findApproval(ctx context.Context, id ledger.ApprovalID) (*storedApproval, error) {
	record, err := s.store.Approval(ctx, id)
	if err == nil {
		return &storedApproval{
			org:   record.Org,
			judge: func(ctx context.Context) (*ledger.Verification, error) { return s.judge.Approvals.Verify(ctx, record) },
			hash:  func() ([32]byte, bool, error) { return s.decisionHash(record) },
		}, nil
	}
	if !errors.Is(err, store.ErrNotFound) {
		return nil, err
	}
	imported, err := s.store.ImportedApproval(ctx, id)
	if err != nil {
		return nil, err
	}
	return &storedApproval{
		org: imported.Org,
		judge: func(ctx context.Context) (*ledger.Verification, error) {
			return s.judge.Approvals.VerifyImported(ctx, imported)
		},
		hash: func() ([32]byte, bool, error) { return verify.ImportedHash(imported) },
	}, nil
}

func (s *approvalService) decisionHash(record *store.ApprovalRecord) (hash [32]byte, ok bool, err error) {
	approval, err := s.store.ReadApproval(record)
	if errors.Is(err, ledger.ErrStateTampered) {
		return hash, false, nil
	}
	if err != nil || approval.Status.Open() {
		return hash, false, err
	}
	return approval.Hash(), true, nil
}
