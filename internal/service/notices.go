package service

import (
	"countersign/internal/ledger"
	"countersign/internal/notify"
	"countersign/internal/store"
	"countersign/internal/verify"
)

// The kinds of jobs.
const (
	JobDeadline  = verify.JobDeadline
	JobKeyExpiry = "api_key.expiry" // body: the key's id
	JobNotice    = "notice"         // body: a notify.Notice, to be fanned out
	JobWebhook   = "webhook"        // body: see Delivery
	JobEmail     = "email"
)

// notice queues word of what happened, in the transaction in which it happens.
// Notices of one stream are delivered in order.
func (b *batch) notice(org *ledger.Organization, n notify.Notice, stream string) {
	if org.Controls.Webhooks == 0 && !mailed[n.Kind] {
		return
	}
	n.At, n.Organization = b.now, org.Slug
	if n.Link == "" {
		n.Link = b.service.link(&n)
	}
	body, err := n.Encode()
	if err != nil {
		// A notice is made here, of names that were checked at the edge; one that
		// cannot be written is a defect, and no reason to refuse what it tells of.
		b.service.log.Error("a notice could not be written", "kind", string(n.Kind), "error", err)
		return
	}
	b.changes.NewJobs = append(b.changes.NewJobs, &store.Job{Org: org.ID, Kind: JobNotice, Stream: stream, RunAt: b.now, Body: body})
}

// mailed are the kinds that people are told by e-mail.
var mailed = map[notify.Kind]bool{notify.ApprovalRequested: true, notify.ApprovalEscalated: true, notify.LedgerTamperFound: true}

// link is the console's page about a notice, "" where the service does not know
// its own address.
func (s *Service) link(n *notify.Notice) string {
	switch {
	case s.publicURL == "":
		return ""
	case n.ApprovalID != "":
		return s.publicURL + "/approvals/" + n.ApprovalID
	case n.ReceiptID != "":
		return s.publicURL + "/receipts/" + n.ReceiptID
	case n.ChainID != "":
		return s.publicURL + "/chains/" + n.ChainID
	}
	return s.publicURL + "/"
}

// settled tells those who wait, once a batch is durable.
func (s *Service) settled(b *batch) {
	if c := &b.changes; len(c.NewChains)+len(c.NewEvents)+len(c.States)+len(c.Heads)+len(c.Logs) > 0 {
		s.storage.wrote() // a transaction that writes nothing shows nothing
	}
	s.judge.NoteHeads(b.changes.Heads)
	s.noteLogs(b.changes.Logs)
	if len(b.changes.NewJobs) > 0 {
		s.jobsAdded()
	}
}

// approvalNotice is what is told of an approval.
func approvalNotice(kind notify.Kind, chain *ledger.Chain, a *ledger.Approval) notify.Notice {
	n := notify.Notice{
		Kind: kind, Chain: chain.Name, ChainID: chain.ID.String(), ApprovalID: a.ID.String(),
		Agent: a.AgentName, Action: a.ActionName, Policy: a.PolicyName, Status: string(a.Status),
		Source: a.DecidedBy(),
	}
	if a.Status.Open() {
		n.ExpiresAt = a.ExpiresAt
	}
	if a.DeniedBy != nil {
		n.Policy = a.DeniedBy.PolicyName
	}
	if a.Reviewer != nil {
		n.Reviewer = a.Reviewer.Name
	}
	return n
}
