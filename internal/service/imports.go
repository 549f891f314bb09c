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

	"github.com/google/uuid"

	"countersign/internal/canon"
	"countersign/internal/evidence"
	"countersign/internal/ledger"
	"countersign/internal/store"
	"countersign/internal/verify"
)

// Bounds of one import. A larger one is made in parts.
const (
	MaxImportedApprovals = 5_000
	MaxImportBytes       = 16 << 20
	maxFaultyLines       = 100 // that are named
)

// Import is what an import of approvals came to.
type Import struct {
	ID       uuid.UUID // zero where nothing was new
	Imported int
	Known    int                       // that were imported before
	Keys     []*store.SigningKeyRecord // that are new in the registry
}

// importLine is an approval with the line on which it stands.
type importLine struct {
	*ledger.ImportedApproval
	number int
}

// faultyLines are what is wrong with an import. Nothing of it is imported.
type faultyLines struct {
	faults []string
	more   int
}

func (f *faultyLines) add(line int, err error) {
	if len(f.faults) == maxFaultyLines {
		f.more++
		return
	}
	f.faults = append(f.faults, fmt.Sprintf("line %d: %s", line, reasonOf(err)))
}

// reasonOf says what is wrong in one line of text.
func reasonOf(err error) string {
	var own *ledger.Error
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
	return ledger.Errorf(ledger.CodeInvalid, "nothing was imported: %d lines are faulty\n%s%s", len(f.faults)+f.more, strings.Join(f.faults, "\n"), more)
}

// readImport reads JSON lines, of which blank ones count and say nothing.
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
			return nil, fmt.Errorf("the approvals could not be read: %w", err)
		}
		if limited.N <= 0 {
			return nil, ledger.Errorf(ledger.CodeInvalid, "an import has at most %d bytes: make it in parts", MaxImportBytes)
		}
		switch text := bytes.TrimSpace(line); {
		case long || len(text) > ledger.MaxImported:
			faulty.add(number, fmt.Errorf("a line has at most %d bytes", ledger.MaxImported))
		case len(text) > 0:
			if len(found) == MaxImportedApprovals {
				return nil, ledger.Errorf(ledger.CodeInvalid, "an import has at most %d approvals: make it in parts", MaxImportedApprovals)
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

// distinctLines leaves out what stands twice, and refuses two that are not the same.
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
		return nil, ledger.Errorf(ledger.CodeInvalid, "there is no approval to import: each line is a JSON object of decision_record, signature and public_key")
	}
	slices.SortFunc(distinct, func(a, b importLine) int { return bytes.Compare(a.ID.UUID[:], b.ID.UUID[:]) })
	return distinct, nil
}

// ImportApprovals takes approvals into an organization's keeping that were decided and
// signed elsewhere: all of them or none. Those that are there already are left as they are.
// They let nothing happen: no action waits for one. Their keys are entered as historical.
func (o *Operator) ImportApprovals(ctx context.Context, slug string, in io.Reader) (*Import, error) {
	lines, err := readImport(in)
	if err != nil {
		return nil, err
	}
	org, err := o.organization(ctx, slug)
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

// importing is an import on its way to the store: approvals, new keys, and the acts that
// say so.
type importing struct {
	org    ledger.OrgID
	lines  []importLine          // by id
	others map[ledger.OrgID]bool // whose approvals have their own place
	done   Import
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
	if !evidence.Genuine(registry) {
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
	if most := maxSigningKeys - len(registry); len(i.done.Keys) > most {
		return ledger.Errorf(ledger.CodeInvalid, "the import brings %d keys, and the registry has room for %d more", len(i.done.Keys), most)
	}
	return i.enter(b, fresh, keys)
}

// byPublic finds keys by their public halves. Where somebody has entered one twice, what
// the service holds or must not be trusted goes first, and then the oldest.
func byPublic(registry []*store.SigningKeyRecord) map[string]*store.SigningKeyRecord {
	keys := make(map[string]*store.SigningKeyRecord, len(registry))
	for _, key := range registry {
		if keys[string(key.Public)] == nil || key.Private != nil || key.Status == ledger.SigningRevoked {
			keys[string(key.Public)] = key
		}
	}
	return keys
}

// fresh are the approvals that are not there yet. Nothing is changed before all are known
// to be good.
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

// enter writes the keys and the approvals with their acts.
func (i *importing) enter(b *batch, fresh []importLine, keys map[string]*store.SigningKeyRecord) error {
	for _, key := range i.done.Keys {
		b.putSigningKey(key)
		if err := i.act(b, signingKeyDeed(ledger.ActSigningKeyImport, key, "", nil)); err != nil {
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
	return i.act(b, &deed{action: ledger.ActApprovalsImport, target: i.done.ID.String(), detail: details(func(w *canon.ObjectWriter) {
		w.Int("approvals", digest.Count)
		w.String("sha256", digest.Sum())
	})})
}

// act enters one of the acts of the import.
func (i *importing) act(b *batch, d *deed) error {
	before, err := b.org(i.org)
	if err != nil {
		return err
	}
	org := *before
	return b.enact(ledger.ActorOperator, &org, d)
}

// ImportedApproval is an approval that was decided elsewhere, with what there is to say of
// it.
type ImportedApproval struct {
	*ledger.Verification
	ImportedAt ledger.Time // 0 where nothing vouches for it
}

// ImportedApprovals lists the organization's, by id, after the given one.
func (s *Service) ImportedApprovals(ctx context.Context, caller *Caller, after ledger.ApprovalID, limit int) ([]*ImportedApproval, error) {
	if err := s.authorize(ctx, caller, ledger.RoleMember); err != nil {
		return nil, err
	}
	records, err := s.store.ImportedApprovals(ctx, caller.Org, after, limit)
	if err != nil {
		return nil, visible(err)
	}
	imported := make([]*ImportedApproval, len(records))
	for n, record := range records {
		v, err := s.judge.Imported(ctx, record)
		if err != nil {
			return nil, visible(err)
		}
		imported[n] = &ImportedApproval{Verification: v, ImportedAt: record.ImportedAt}
	}
	return imported, nil
}

// storedApproval is an approval that was asked for here, or one that was imported.
type storedApproval struct {
	org   ledger.OrgID
	judge func(context.Context) (*ledger.Verification, error)
	// hash is of the decision record; false where there is none, or nothing vouches for it.
	hash func() ([32]byte, bool, error)
}

// findApproval finds an approval of either kind by its id.
func (s *Service) findApproval(ctx context.Context, id ledger.ApprovalID) (*storedApproval, error) {
	record, err := s.store.Approval(ctx, id)
	if err == nil {
		return &storedApproval{
			org:   record.Org,
			judge: func(ctx context.Context) (*ledger.Verification, error) { return s.judge.Approval(ctx, record) },
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
		org:   imported.Org,
		judge: func(ctx context.Context) (*ledger.Verification, error) { return s.judge.Imported(ctx, imported) },
		hash:  func() ([32]byte, bool, error) { return verify.ImportedHash(imported) },
	}, nil
}

func (s *Service) decisionHash(record *store.ApprovalRecord) (hash [32]byte, ok bool, err error) {
	approval, err := s.store.ReadApproval(record)
	if errors.Is(err, ledger.ErrStateTampered) {
		return hash, false, nil
	}
	if err != nil || approval.Status.Open() {
		return hash, false, err
	}
	return approval.Hash(), true, nil
}
