package service

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"time"

	"countersign/internal/canon"
	"countersign/internal/fault"
	"countersign/internal/ledger"
	"countersign/internal/notify"
	"countersign/internal/store"
)

// slackService shows approvals in Slack, and records what people decide there.
type slackService struct {
	*shared
	approvals *approvalService
	findings  *findingService
	slack     *notify.Slack // nil if the server has no Slack app
}

// JobSlack brings the message about an approval up to date. Its body names the approval, and
// for a message that is not the newest also that message.
const JobSlack = "slack"

// MaxSlackPress bounds a request that Slack sends when a button is pressed, in bytes.
const MaxSlackPress = notify.MaxSlackPress

const (
	// maxSlackKeys bounds the keys that are read for a member. There is one, unless somebody has
	// written others into the database.
	maxSlackKeys = 20
	// slackTellTimeout bounds telling a member why nothing was decided: Slack wants an answer
	// within three seconds.
	slackTellTimeout = 2 * time.Second
)

// slackPlace is where a message is, and what it shows.
type slackPlace struct {
	channel, ts string
	escalated   bool // the message asked when the approval had escalated
}

// slackNames is what the names of jobs begin with that say where the messages about an approval are.
// Such a name is stored together with the end of the job that posted the message, and has an
// authenticator of its own. Timestamps grow and have the same length, so the greatest name is that
// of the newest message.
func slackNames(id ledger.ApprovalID) string { return JobSlack + "/" + id.String() + "/" }

func (p *slackPlace) name(id ledger.ApprovalID) string {
	occasion := "requested"
	if p.escalated {
		occasion = "escalated"
	}
	return slackNames(id) + p.ts + "/" + occasion + "/" + p.channel
}

// newestMessage returns where the newest message about an approval is; nil if there is none.
func (s *slackService) newestMessage(ctx context.Context, org ledger.OrgID, id ledger.ApprovalID) (*slackPlace, error) {
	name, err := s.store.LastJobName(ctx, org, slackNames(id), "")
	if err != nil || name == "" {
		return nil, err
	}
	parts := strings.Split(strings.TrimPrefix(name, slackNames(id)), "/")
	if len(parts) != 3 {
		return nil, fmt.Errorf("a job's name with %d parts does not say where a message is", len(parts))
	}
	return &slackPlace{ts: parts[0], escalated: parts[1] == "escalated", channel: parts[2]}, nil
}

// slackJob returns a job for an approval. place and shown are a message and what it showed when it was
// posted; nil and "" for the newest message.
func slackJob(org ledger.OrgID, id ledger.ApprovalID, place *slackPlace, shown string, now ledger.Time) *store.Job {
	w := canon.BeginObject(nil)
	w.String("approval_id", id.String())
	if place != nil {
		w.String("channel", place.channel)
		w.String("shown", shown)
		w.String("ts", place.ts)
	}
	return &store.Job{Org: org, Kind: JobSlack, Stream: slackNames(id), RunAt: now, Body: w.End()}
}

// queueSlack queues the job that shows how an approval stands after the batch.
func (b *batch) queueSlack(approval *ledger.Approval) {
	if org, err := b.org(approval.Org); err == nil && org.Settings.SlackChannel != "" {
		b.changes.NewJobs = append(b.changes.NewJobs, slackJob(approval.Org, approval.ID, nil, "", b.now))
	}
}

// SlackMessage is a message to be posted or replaced.
type SlackMessage struct {
	Channel  string
	TS       string // of the message to replace; "" to post one
	Approval *notify.SlackApproval

	id     ledger.ApprovalID
	posts  slackPlace  // what is posted, without its timestamp
	before *slackPlace // the newest message until then; nil for none
	shown  string
}

// Slack returns what a job has to send to Slack now; nil for nothing. It shows how the approval stands
// when the job runs, so a job that is late, or that runs twice, shows nothing outdated.
func (j *Jobs) Slack(ctx context.Context, job *store.Job) (*SlackMessage, error) {
	v, err := canon.Parse(job.Body)
	if err != nil {
		return nil, fmt.Errorf("unreadable Slack job: %w", err)
	}
	text := func(name string) string { member, _ := v.Get(name); return member.Str() }
	id, err := ledger.ParseID(text("approval_id"))
	if err != nil {
		return nil, fmt.Errorf("Slack job without the id of an approval: %w", err)
	}
	return j.service.slackService.message(ctx, job.Org, ledger.ApprovalID{UUID: id}, &slackPlace{channel: text("channel"), ts: text("ts")}, text("shown"))
}

// message returns what to send about an approval. about is the message that the job is about, or has
// no timestamp; shown is what that one showed.
func (s *slackService) message(ctx context.Context, org ledger.OrgID, id ledger.ApprovalID, about *slackPlace, shown string) (*SlackMessage, error) {
	view, chain, organization, err := s.read(ctx, org, id)
	if view == nil || err != nil {
		return nil, err
	}
	newest, err := s.newestMessage(ctx, org, id)
	if err != nil {
		return nil, err
	}
	m := &SlackMessage{id: id, before: newest, shown: slackStanding(view), Approval: s.show(organization, chain, view)}
	asks := view.Status.Open() && organization.Settings.SlackChannel != ""
	switch {
	case about.ts != "" && newest != nil && newest.ts > about.ts:
		m.Channel, m.TS, m.Approval.Superseded = about.channel, about.ts, true
	case about.ts != "" && shown == m.shown:
		return nil, nil
	case asks && (newest == nil || view.Status == ledger.ApprovalEscalated && !newest.escalated):
		m.Channel = organization.Settings.SlackChannel
		m.posts = slackPlace{channel: m.Channel, escalated: view.Status == ledger.ApprovalEscalated}
	case newest == nil: // it ended before anybody was asked
		return nil, nil
	default:
		m.Channel, m.TS = newest.channel, newest.ts
	}
	return m, nil
}

// read reads an approval of an organization as reviewers see it, with its chain; nil if it was
// deleted.
func (s *slackService) read(ctx context.Context, org ledger.OrgID, id ledger.ApprovalID) (*ApprovalView, *ledger.Chain, *ledger.Organization, error) {
	record, err := s.store.Approval(ctx, id)
	if errors.Is(err, store.ErrNotFound) || err == nil && record.Org != org {
		return nil, nil, nil, nil
	}
	if err != nil {
		return nil, nil, nil, err
	}
	organization, err := s.organization(ctx, org)
	if err != nil {
		return nil, nil, nil, err
	}
	viewer := s.approvals.viewer(organization)
	view, err := s.approvals.approvalView(ctx, record, viewer)
	if err == nil {
		err = s.approvals.stillWaits(ctx, view, viewer)
	}
	if err != nil {
		return nil, nil, nil, err
	}
	chain, err := viewer.chain(ctx, view.Chain)
	if err != nil {
		return nil, nil, nil, err
	}
	return view, chain.Chain, organization, nil
}

// slackStanding says how an approval stands, as far as a message shows it.
func slackStanding(view *ApprovalView) string {
	return fmt.Sprintf("%s %d %t", view.Status, view.Counting(), view.TwoPerson)
}

// show returns an approval as Slack shows it.
func (s *slackService) show(org *ledger.Organization, chain *ledger.Chain, view *ApprovalView) *notify.SlackApproval {
	n := approvalNotice(notify.ApprovalDecided, chain, view.Approval)
	n.Organization, n.Status, n.At = org.Slug, string(view.Status), view.RequestedAt
	switch {
	case view.Status == ledger.ApprovalPending:
		n.Kind = notify.ApprovalRequested
	case view.Status == ledger.ApprovalEscalated:
		n.Kind = notify.ApprovalEscalated
	case view.DecidedAt != nil:
		n.At = *view.DecidedAt
	default: // its time has passed, and nobody has recorded that yet
		n.At = view.ExpiresAt
	}
	if view.Status == ledger.ApprovalTimedOut {
		n.Kind, n.ExpiresAt = notify.ApprovalTimedOut, 0
	}
	n.Link = s.link(&n)
	shown := &notify.SlackApproval{Notice: n, Needed: 1}
	if view.TwoPerson {
		shown.Needed = 2
	}
	for _, voter := range view.Voters {
		if voter.Discounted == "" {
			shown.Votes = append(shown.Votes, voter.Reviewer.Name)
		}
	}
	if view.Status.Open() {
		shown.Approve, shown.Deny = s.buttonValue(view.Approval, notify.SlackApprove), s.buttonValue(view.Approval, notify.SlackDeny)
	}
	return shown
}

// FinishSlack ends a job whose message was sent. Where a message was posted is stored in the same
// transaction, with the job that looks at it once more.
func (j *Jobs) FinishSlack(ctx context.Context, job *store.Job, m *SlackMessage, ts string) error {
	if m.TS != "" {
		return j.Finish(ctx, job)
	}
	place, now := m.posts, j.service.now()
	place.ts = ts
	again := slackJob(job.Org, m.id, &place, m.shown, now)
	again.Once = place.name(m.id)
	follow := []*store.Job{again}
	if m.before != nil {
		follow = append(follow, slackJob(job.Org, m.id, m.before, "", now))
	}
	return j.FinishWith(ctx, job, follow)
}

// buttonValue returns the value of a button: the approval's id, and an authenticator that binds it to
// what the button does and to the action that the approval is about.
func (s *slackService) buttonValue(approval *ledger.Approval, does string) string {
	mac := ledger.Authenticate(s.keys, approval.Org, ledger.PurposeSlackButton, buttonRecord(approval, does))
	return approval.ID.String() + "." + base64.RawURLEncoding.EncodeToString(mac)
}

func buttonRecord(approval *ledger.Approval, does string) []byte {
	w := canon.BeginObject(nil)
	w.String("approval_id", approval.ID.String())
	w.String("does", does)
	w.String("event_id", approval.Event.String())
	w.String("payload_sha256", approval.PayloadSHA256)
	if approval.RedactionsSHA256 != nil {
		w.String("redactions_sha256", *approval.RedactionsSHA256)
	}
	return w.End()
}

var (
	errNoSlack    = fault.Errorf(fault.CodeNotFound, "this server has no Slack app: start it with --slack-token-file and --slack-signing-secret-file")
	errNotSlack   = fault.Errorf(fault.CodeUnauthenticated, "%v: compare the signing secret and the clocks", notify.ErrNotFromSlack)
	errSlackPress = fault.Errorf(fault.CodeInvalid, "%v", notify.ErrSlackPress)
)

// RequireSlack fails if the server has no Slack app.
func (s *slackService) RequireSlack() error {
	if s.slack == nil {
		return errNoSlack
	}
	return nil
}

const notOurButton = "Nothing was decided: this button belongs to no approval that is here. Decide in the console."

// PressSlackButton decides an approval for the Slack member who pressed a button. It checks that
// Slack has signed the request, that the service made the button for this approval and this action,
// and that an admin has entered the member at a key; whether that key may decide is the question of
// DecideApproval. The member is told why nothing was decided, and that is no error.
func (s *slackService) PressSlackButton(ctx context.Context, timestamp, signature string, body []byte) error {
	if err := s.RequireSlack(); err != nil {
		return err
	}
	press, err := s.slack.Press(timestamp, signature, body, s.clock())
	switch {
	case errors.Is(err, notify.ErrNotFromSlack):
		return errNotSlack
	case err != nil:
		return errSlackPress
	case press.Action == "":
		return nil
	}
	approval, err := s.pressed(ctx, press)
	if err != nil {
		return err
	}
	if approval == nil {
		s.tell(ctx, press, notOurButton)
		return nil
	}
	caller, err := s.slackCaller(ctx, approval.Org, press.Member())
	if err != nil {
		return err
	}
	if caller == nil {
		s.tell(ctx, press, notEntered(press.Member()))
		return nil
	}
	verdict := &ledger.Verdict{Approve: press.Action == notify.SlackApprove, PayloadSHA256: approval.PayloadSHA256, Comment: "approved in Slack"}
	if !verdict.Approve {
		verdict.Comment = "denied in Slack"
	}
	_, err = s.approvals.DecideApproval(ctx, caller, approval.ID, verdict)
	var own *fault.Error
	switch {
	case errors.Is(err, errNotThisMember):
		s.tell(ctx, press, notEntered(press.Member()))
		return nil
	case errors.As(err, &own):
		s.tell(ctx, press, strings.ToUpper(own.Message[:1])+own.Message[1:]+".")
		return nil
	}
	return err
}

func notEntered(member string) string {
	return "Nothing was decided: you are not entered at an API key here. Your Slack member is " + member +
		". Ask an admin to enter it as the Slack member of your API key, or of a new one (slack_member)."
}

// pressed returns the approval that a button is for; nil if the service did not make the button for
// it.
func (s *slackService) pressed(ctx context.Context, press *notify.SlackPress) (*ledger.Approval, error) {
	text, encoded, _ := strings.Cut(press.Value, ".")
	id, err := ledger.ParseID(text)
	mac, notEncoded := base64.RawURLEncoding.Strict().DecodeString(encoded)
	if err != nil || notEncoded != nil {
		return nil, nil //nolint:nilerr // the service did not make it
	}
	record, err := s.store.Approval(ctx, ledger.ApprovalID{UUID: id})
	if errors.Is(err, store.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, visible(err)
	}
	approval, err := s.store.ReadApproval(record)
	if err != nil {
		s.findings.NoteTampering(record.Org, err)
		return nil, visible(err)
	}
	if !ledger.Authentic(s.keys, approval.Org, ledger.PurposeSlackButton, mac, buttonRecord(approval, press.Action)) {
		return nil, nil
	}
	return approval, nil
}

// slackCaller returns the caller for a Slack member in an organization; nil if no active key names
// the member.
func (s *slackService) slackCaller(ctx context.Context, org ledger.OrgID, member string) (*Caller, error) {
	keys, err := s.store.KeysBySlackMember(ctx, org, member, s.now(), maxSlackKeys)
	if err != nil {
		return nil, visible(err)
	}
	for _, key := range keys {
		if key.Tampered {
			s.findings.noteFailingRows(ctx, key.Org)
			continue
		}
		if key.SlackMember == member && key.Active(s.now()) {
			caller := callerOf(key)
			caller.slackMember = member
			return caller, nil
		}
	}
	return nil, nil
}

// tell tells a member why nothing was decided. That it fails is no reason to fail the request: Slack
// would only say that something went wrong.
func (s *slackService) tell(ctx context.Context, press *notify.SlackPress, text string) {
	ctx, cancel := context.WithTimeout(ctx, slackTellTimeout)
	defer cancel()
	if err := s.slack.Tell(ctx, press.Channel, press.User, text); err != nil {
		s.log.Warn("a member could not be told in Slack why nothing was decided", "reason", err)
	}
}

// SlackChannel is a channel that an organization has set.
type SlackChannel struct{ Slug, Channel string }

// SlackChannels lists the channels of all organizations whose settings are authentic.
func (o *Operator) SlackChannels(ctx context.Context) ([]SlackChannel, error) {
	orgs, err := o.service.store.Organizations(ctx)
	if err != nil {
		return nil, visible(err)
	}
	var channels []SlackChannel
	for _, org := range orgs {
		if org.Settings.SlackChannel != "" && org.Authentic(o.service.keys) {
			channels = append(channels, SlackChannel{org.Slug, org.Settings.SlackChannel})
		}
	}
	return channels, nil
}
