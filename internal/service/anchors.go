package service

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"

	"github.com/google/uuid"

	"countersign/internal/canon"
	"countersign/internal/ledger"
	"countersign/internal/store"
)

// JobAnchor is work on one anchor: to make it, or to follow it up.
const JobAnchor = "anchor"

// anchorJobs are to anchor a subject by the given methods.
func anchorJobs(methods []string, org ledger.OrgID, kind string, subject uuid.UUID, sequence int64, digest [32]byte, now ledger.Time) []*store.Job {
	jobs := make([]*store.Job, 0, len(methods))
	for _, method := range methods {
		w := canon.BeginObject(nil)
		w.String("digest", hex.EncodeToString(digest[:]))
		w.String("kind", kind)
		w.String("method", method)
		w.Int("sequence", sequence)
		w.String("subject", subject.String())
		jobs = append(jobs, &store.Job{Org: org, Kind: JobAnchor, Stream: kind + "/" + subject.String() + "/" + method, RunAt: now, Body: w.End()})
	}
	return jobs
}

// AnchorHeads queues the anchoring of each organization's newest receipt, where it
// has none yet: hourly, and when an admin asks.
func (s *Service) AnchorHeads(ctx context.Context) error {
	if len(s.anchoring) == 0 {
		return nil
	}
	orgs, err := s.organizations(ctx)
	if err != nil {
		return err
	}
	// What was done to one organization must not keep the others from being anchored.
	var failed []error
	for _, org := range orgs {
		if err := s.anchorHead(ctx, org); err != nil {
			s.NoteTampering(org.ID, err)
			failed = append(failed, visible(err))
		}
	}
	return errors.Join(failed...)
}

// AnchorHead queues the anchoring of the caller's newest receipt now.
func (s *Service) AnchorHead(ctx context.Context, caller *Caller) error {
	if err := s.authorize(ctx, caller, ledger.RoleAdmin); err != nil {
		return err
	}
	if len(s.anchoring) == 0 {
		return ledger.Errorf(ledger.CodeInvalid, "no anchors are configured: start the server with --tsa-url or --ots-calendars")
	}
	org, err := s.store.Organization(ctx, caller.Org)
	if err != nil {
		return visible(err)
	}
	return visible(s.anchorHead(ctx, org))
}

func (s *Service) anchorHead(ctx context.Context, org *ledger.Organization) error {
	receipt, err := s.judge.NewestReceipt(ctx, org)
	if err != nil || receipt == nil {
		return err
	}
	known, err := s.store.Anchors(ctx, org.ID, store.AnchorSubject{Kind: ledger.SubjectHead, ID: receipt.ID.UUID})
	if err != nil {
		return err
	}
	methods := slices.DeleteFunc(slices.Clone(s.anchoring), func(method string) bool {
		return slices.ContainsFunc(known, func(record *store.AnchorRecord) bool { return record.Method == method && !record.Tampered })
	})
	if len(methods) == 0 {
		return nil
	}
	return s.committer.commit(ctx, &queueJobs{anchorJobs(methods, org.ID, ledger.SubjectHead, receipt.ID.UUID, receipt.Sequence, receipt.Hash(), s.now())})
}

// queueJobs adds work that has no other cause in the store.
type queueJobs struct{ jobs []*store.Job }

// tenant is none: the service queues jobs of its own accord, for any organization.
func (o *queueJobs) tenant() ledger.OrgID { return ledger.OrgID{} }
func (o *queueJobs) size() int            { return smallOperation }
func (o *queueJobs) need(*store.Needs)    {}
func (o *queueJobs) plan(b *batch) error {
	b.changes.NewJobs = append(b.changes.NewJobs, o.jobs...)
	return nil
}

// Anchor reads a job of an anchor, with the proof that there is so far.
func (j *Jobs) Anchor(ctx context.Context, job *store.Job) (*ledger.Anchor, error) {
	v, err := canon.Parse(job.Body)
	if err != nil {
		return nil, fmt.Errorf("an anchor's job that cannot be read: %w", err)
	}
	text := func(name string) string { member, _ := v.Get(name); return member.Str() }
	digest, err := hex.DecodeString(text("digest"))
	if err != nil || len(digest) != 32 {
		return nil, errors.New("an anchor's job without a digest")
	}
	subject, err := ledger.ParseID(text("subject"))
	if err != nil {
		return nil, fmt.Errorf("an anchor's job without a subject: %w", err)
	}
	sequence, _ := v.Get("sequence")
	number, _ := sequence.Int()
	anchor := &ledger.Anchor{
		Org: job.Org, Kind: text("kind"), Subject: subject, Sequence: number, Method: text("method"),
		Digest: [32]byte(digest), Standing: ledger.AnchorPending,
	}
	known, err := j.service.store.Anchors(ctx, job.Org, store.AnchorSubject{Kind: anchor.Kind, ID: subject})
	if err != nil {
		return nil, err
	}
	for _, record := range known {
		if record.Method == anchor.Method && record.Digest == anchor.Digest && !record.Tampered {
			anchor.Standing, anchor.Reason, anchor.Proof = ledger.AnchorStanding(record.Status), record.Reason, record.Proof
			anchor.Block = record.Block
		}
	}
	return anchor, nil
}

// SaveAnchor writes down what has become of an anchor. That one was made enters the
// audit log in the same transaction, so that an audit knows which there must be.
func (j *Jobs) SaveAnchor(ctx context.Context, anchor *ledger.Anchor) error {
	record := &store.AnchorRecord{
		Org: anchor.Org, Subject: store.AnchorSubject{Kind: anchor.Kind, ID: anchor.Subject}, Sequence: anchor.Sequence, Method: anchor.Method,
		Digest: anchor.Digest, Status: string(anchor.Standing), Reason: anchor.Reason, Proof: anchor.Proof,
		Block: anchor.Block, UpdatedAt: j.service.now(),
	}
	if anchor.Standing != ledger.AnchorVerified {
		return j.service.store.PutAnchor(ctx, record)
	}
	return j.service.committer.commit(ctx, &makeAnchor{anchor, record})
}

// makeAnchor writes an anchor whose proof was found good, with its entry in the audit
// log. It changes nothing of the organization, so it locks the log alone.
type makeAnchor struct {
	anchor *ledger.Anchor
	record *store.AnchorRecord
}

func (o *makeAnchor) tenant() ledger.OrgID { return o.anchor.Org }

func (o *makeAnchor) size() int { return smallOperation + len(o.record.Proof) }

func (o *makeAnchor) need(needs *store.Needs) {
	needs.Orgs = append(needs.Orgs, o.anchor.Org)
	needs.Logs = append(needs.Logs, o.anchor.Org)
}

func (o *makeAnchor) plan(b *batch) error {
	org, err := b.org(o.anchor.Org)
	if err != nil {
		return err
	}
	if err := b.act(ledger.ActorService, org, anchorDeed(o.anchor)); err != nil {
		return err
	}
	b.changes.Anchors = append(b.changes.Anchors, o.record)
	return nil
}

func anchorDeed(anchor *ledger.Anchor) *deed {
	return &deed{action: ledger.ActAnchorMade, target: anchor.Subject.String(), detail: anchor.MadeDetail()}
}
