package service

import (
	"context"
	"slices"
	"sync"

	"countersign/internal/ledger"
	"countersign/internal/notify"
	"countersign/internal/store"
)

// Unheard is an organization in which nobody of its own is told when an approval
// escalates: no webhook wants to be told, and no e-mail would go out.
type Unheard struct {
	Slug      string
	Approvers int  // fallback approvers in the settings
	Mail      bool // the server sends e-mail
}

// Why says what is missing.
func (u *Unheard) Why() string {
	switch {
	case u.Approvers > 0:
		return "the settings name fallback approvers, but the server has no mail server to reach them by"
	case u.Mail:
		return "the settings name no fallback approvers; only addresses that a chain brings are told"
	default:
		return "the settings name no fallback approvers, and the server has no mail server"
	}
}

// Remedy says what an admin, or the operator, can do about it.
func (u *Unheard) Remedy() string {
	switch {
	case u.Approvers > 0:
		return "start the server with --smtp-url-file, or add a webhook for approval.escalated"
	case u.Mail:
		return "name fallback approvers in the settings, or add a webhook for approval.escalated"
	default:
		return "add a webhook for approval.escalated, or name fallback approvers in the settings and start the server with --smtp-url-file"
	}
}

// UnheardEscalations are the organizations in which an escalation would reach nobody,
// out of so many. It reads the list of organizations, and the webhooks of one only
// where they may have changed since it last did.
func (s *Service) UnheardEscalations(ctx context.Context) (unheard []*Unheard, organizations int, err error) {
	return s.unheard(ctx, s.mail)
}

// UnheardEscalations is for a command that works beside the server, which knows by
// its own flags alone whether that sends e-mail.
func (o *Operator) UnheardEscalations(ctx context.Context, mail bool) (unheard []*Unheard, organizations int, err error) {
	return o.service.unheard(ctx, mail)
}

func (s *Service) unheard(ctx context.Context, mail bool) (unheard []*Unheard, organizations int, err error) {
	orgs, err := s.store.Organizations(ctx)
	if err != nil {
		return nil, 0, visible(err)
	}
	for _, org := range orgs {
		found, err := s.unheardIn(ctx, org, mail)
		if err != nil {
			return nil, 0, err
		}
		if found != nil {
			unheard = append(unheard, found)
		}
	}
	return unheard, len(orgs), nil
}

// Unheard says whether an escalation would reach nobody in the caller's
// organization; nil where somebody is told.
func (s *Service) Unheard(ctx context.Context, caller *Caller) (*Unheard, error) {
	if err := s.authorize(ctx, caller, ledger.RoleAdmin); err != nil {
		return nil, err
	}
	org, err := s.store.Organization(ctx, caller.Org)
	if err != nil {
		return nil, visible(err)
	}
	return s.unheardIn(ctx, org, s.mail)
}

func (s *Service) unheardIn(ctx context.Context, org *ledger.Organization, mail bool) (*Unheard, error) {
	approvers := len(org.Settings.FallbackApprovers)
	if mail && approvers > 0 {
		return nil, nil
	}
	told, err := s.endpointToldOfEscalation(ctx, org)
	if err != nil || told {
		return nil, err
	}
	return &Unheard{Slug: org.Slug, Approvers: approvers, Mail: mail}, nil
}

// endpointToldOfEscalation reports whether a webhook wants to be told.
func (s *Service) endpointToldOfEscalation(ctx context.Context, org *ledger.Organization) (bool, error) {
	if org.Controls.Webhooks == 0 {
		return false, nil
	}
	if told, known := s.escalationHooks.get(org); known {
		return told, nil
	}
	endpoints, err := s.store.Webhooks(ctx, org.ID)
	if err != nil {
		return false, visible(err)
	}
	told := slices.ContainsFunc(endpoints, func(e *store.WebhookRecord) bool { return wants(e, notify.ApprovalEscalated) })
	s.escalationHooks.put(org, told)
	return told, nil
}

// escalationHooks remembers which organizations have a webhook that wants to be told
// of escalations. Every change of a webhook changes its organization and with it the
// number of the act, so what is remembered of a number stays true.
type escalationHooks struct {
	mu    sync.Mutex
	known map[ledger.OrgID]escalationHook
}

type escalationHook struct {
	act  int64
	told bool
}

// maxEscalationHooks bounds the memory.
const maxEscalationHooks = 10_000

func (h *escalationHooks) get(org *ledger.Organization) (told, known bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	hook, found := h.known[org.ID]
	return hook.told, found && hook.act == org.Controls.Act
}

func (h *escalationHooks) put(org *ledger.Organization, told bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.known == nil || len(h.known) >= maxEscalationHooks {
		h.known = make(map[ledger.OrgID]escalationHook)
	}
	h.known[org.ID] = escalationHook{org.Controls.Act, told}
}
