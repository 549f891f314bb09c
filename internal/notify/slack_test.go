package notify

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/slack-go/slack"

	"countersign/internal/ledger"
	"countersign/internal/notify/slacktest"
)

// slackApp returns the app of a Slack for tests.
func slackApp(t *testing.T, at *slacktest.Slack) *Slack {
	t.Helper()
	app := NewSlack(SlackConfig{Token: ledger.NewSecret(at.Token), SigningSecret: ledger.NewSecret(at.SigningSecret), URL: at.URL})
	t.Cleanup(app.Close)
	return app
}

func askedInSlack() *SlackApproval {
	n := fullNotice()
	n.Reviewer, n.Source = "", ""
	return &SlackApproval{Notice: n, Needed: 1, Approve: "value-a", Deny: "value-d"}
}

// A message has what is needed to decide, the most important first, and the buttons. It is replaced by the verdict without
// them.
func TestSlackShowsAnApproval(t *testing.T) {
	t.Parallel()
	at := slacktest.Start(t)
	app, asked := slackApp(t, at), askedInSlack()
	ts, err := app.Send(t.Context(), slacktest.Channel, "", asked)
	if err != nil {
		t.Fatal(err)
	}
	m := at.Messages()[0]
	want := []string{
		"Approval needed", "Action: issue_refund", "Amount: 18,450.75 USD", "Agent: billing", "Environment: production",
		"Expires: 5 March 2026, 12:00 UTC", "Reason: refunds above 500 USD",
		"Rules:", "large-refunds (require_approval): refunds above 500 USD", "night-shift (deny, in shadow): nobody is there",
		"Policy: large-refunds", "Chain: refund-flow", "Organization: acme", "Requested: 4 March 2026, 12:00 UTC",
	}
	if diff := cmp.Diff(want, m.Lines()); diff != "" {
		t.Errorf("the message (-want +got):\n%s", diff)
	}
	if want := "[acme] Approval needed: issue_refund by billing in refund-flow, 18,450.75 USD"; m.Text != want {
		t.Errorf("the notification says %q, want %q", m.Text, want)
	}
	buttons := m.Buttons()
	for action, value := range map[string]string{SlackApprove: "value-a", SlackDeny: "value-d"} {
		if b := buttons[action]; b == nil || b.Value != value || b.Confirm == nil || b.Confirm.Text.Text != "18,450.75 USD: issue_refund by billing" {
			t.Errorf("the button %s is %+v", action, b)
		}
	}
	if b := buttons["open"]; b == nil || b.URL != asked.Notice.Link || b.Value != "" {
		t.Errorf("the link is %+v", b)
	}

	asked.Approve, asked.Deny, asked.Needed, asked.Votes = "", "", 2, []string{"Ada", "Bob"}
	asked.Notice.Kind, asked.Notice.Status, asked.Notice.Reviewer, asked.Notice.Source = ApprovalDecided, "approved", "Bob", ledger.SourceHuman
	if again, err := app.Send(t.Context(), slacktest.Channel, ts, asked); err != nil || again != ts {
		t.Errorf("replaced as %q, %v", again, err)
	}
	if m = at.Messages()[0]; m.Changes != 1 || len(at.Messages()) != 1 {
		t.Fatalf("%d messages, changed %d times", len(at.Messages()), m.Changes)
	}
	for _, line := range []string{"Approved", "Reviewer: Bob", "Decided: 4 March 2026, 12:00 UTC", "Approved: 2 of 2, by Ada, Bob"} {
		if !slices.Contains(m.Lines(), line) {
			t.Errorf("the verdict lacks %q: %q", line, m.Lines())
		}
	}
	if buttons = m.Buttons(); len(buttons) != 1 || buttons["open"] == nil {
		t.Errorf("the verdict has the buttons %v", buttons)
	}

	asked.Superseded = true
	if _, err := app.Send(t.Context(), slacktest.Channel, ts, asked); err != nil {
		t.Fatal(err)
	}
	if m = at.Messages()[0]; len(m.Buttons()) > 0 || !strings.Contains(strings.Join(m.Lines(), " "), "A newer message") {
		t.Errorf("an older message has %v and says %q", m.Buttons(), m.Lines())
	}
}

// Whatever agents write, a message stays within Slack's limits, mentions nobody, and has no line, link
// or button that the service did not write. The Slack for tests complains otherwise. The dialog that
// asks once more always has the amount, before any name.
func TestSlackShowsHostileNames(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"mentions": "<!channel> <@U123> &lt;!here&gt;", "a link": "<https://evil.example|your console>", "lines": "a\nAmount: 1.00 USD\u2028Status: approved",
		"marks": "*bold* _it_ `code` :tada:", "reversed": "\u202egnp.exe", "length": strings.Repeat("😀", 5000), "one word": strings.Repeat("x", 5000), "an amount": "refund by billing: 1.00 USD" + strings.Repeat(" .", 200), "bytes": "\xff\xfe",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			at := slacktest.Start(t)
			asked := askedInSlack()
			n := &asked.Notice
			n.Organization, n.Chain, n.Environment, n.Agent, n.Action, n.Policy, n.Reason = text, text, text, text, text, text, text
			n.Rules = slices.Repeat([]ledger.MatchedRule{{Name: text, Outcome: ledger.Deny, Reason: text}}, 100)
			asked.Needed, asked.Votes = 2, []string{text}
			if _, err := slackApp(t, at).Send(t.Context(), slacktest.Channel, "", asked); err != nil {
				t.Fatal(err)
			}
			m := at.Messages()[0]
			plain := at.Messages()[0].Lines()
			if rules := slices.Index(plain, "Rules:"); rules != 8 || len(plain) > rules+25 {
				t.Errorf("%d lines, the rules begin at %d", len(plain), rules)
			}
			if len(m.Buttons()) != 3 {
				t.Errorf("%d buttons", len(m.Buttons()))
			}
			for _, action := range []string{SlackApprove, SlackDeny} {
				if asks := m.Buttons()[action].Confirm.Text.Text; !strings.HasPrefix(asks, "18,450.75 USD: ") || !strings.Contains(asks, " by ") {
					t.Errorf("the dialog of %s asks %q", action, asks)
				}
			}
		})
	}
}

// What a member is told is plain text, for that member alone.
func TestSlackTellsAMember(t *testing.T) {
	t.Parallel()
	at := slacktest.Start(t)
	if err := slackApp(t, at).Tell(t.Context(), slacktest.Channel, "U1", "not you, <!channel> & "+strings.Repeat("x", 4000)); err != nil {
		t.Fatal(err)
	}
	if told := at.Told(); len(told) != 1 || !strings.HasPrefix(told[0], "U1: not you, <!channel> & xxx") || len(at.Messages()) > 0 {
		t.Errorf("told: %.100q", told)
	}
}

// The checks of an installation tell a good token and a known channel from others, and show nothing to
// anybody.
func TestSlackIsChecked(t *testing.T) {
	t.Parallel()
	at := slacktest.Start(t)
	app := slackApp(t, at)
	if who, err := app.Check(t.Context()); err != nil || who != (SlackIdentity{Team: "Example", User: "countersign"}) {
		t.Errorf("%+v, %v", who, err)
	}
	if err := app.CheckChannel(t.Context(), slacktest.Channel); err != nil {
		t.Error(err)
	}
	if err := app.CheckChannel(t.Context(), "C1"); err == nil || !strings.Contains(err.Error(), "does not know the channel") {
		t.Errorf("an unknown channel: %v", err)
	}
	if n := len(at.Messages()); n > 0 {
		t.Errorf("the checks show %d messages", n)
	}
	wrong := NewSlack(SlackConfig{Token: ledger.NewSecret("xoxb-wrong"), URL: at.URL})
	defer wrong.Close()
	if _, err := wrong.Check(t.Context()); err == nil || !strings.Contains(err.Error(), "invalid_auth") || strings.Contains(err.Error(), "xoxb") {
		t.Errorf("a wrong token: %v", err)
	}
}

// Each way in which Slack can fail is retried, waited for or given up, and no error repeats the token,
// the address or what Slack said.
func TestSlackFailures(t *testing.T) {
	t.Parallel()
	const planted = "planted-in-the-answer"
	status := func(code int, header ...string) func(string, http.ResponseWriter, *http.Request) bool {
		return func(_ string, w http.ResponseWriter, _ *http.Request) bool {
			for i := 0; i < len(header); i += 2 {
				w.Header().Set(header[i], header[i+1])
			}
			w.WriteHeader(code)
			_, _ = io.WriteString(w, planted)
			return true
		}
	}
	body := func(text string) func(string, http.ResponseWriter, *http.Request) bool {
		return func(_ string, w http.ResponseWriter, _ *http.Request) bool {
			_, _ = io.WriteString(w, text)
			return true
		}
	}
	for name, c := range map[string]struct {
		respond   func(string, http.ResponseWriter, *http.Request) bool
		permanent bool
		limited   bool
		after     time.Duration
		says      string
	}{
		"too many":              {status(429, "Retry-After", "7"), false, true, 7 * time.Second, "too many messages"},
		"too many, no time":     {status(429), false, true, 30 * time.Second, "too many messages"},
		"too many, as an error": {body(`{"ok":false,"error":"ratelimited"}`), false, true, 30 * time.Second, "too many messages"},
		"an outage":             {status(503), false, false, 0, "Slack answered 503"},
		"a redirect":            {status(302, "Location", "/api/elsewhere"), false, false, 0, "Slack answered 302"},
		"no JSON":               {body(planted), false, false, 0, "what its API does not answer"},
		"no timestamp":          {body(`{"ok":true,"ts":"` + planted + `"}`), false, false, 0, "what its API does not answer"},
		"a huge answer":         {body(`{"ok":true,"ts":"1700000000.000100","x":"` + strings.Repeat("x", maxSlackAnswer) + `"}`), false, false, 0, "what its API does not answer"},
		"a revoked token":       {body(`{"ok":false,"error":"token_revoked"}`), false, false, 0, "does not accept the token"},
		"no permission":         {body(`{"ok":false,"error":"missing_scope","needed":"chat:write"}`), false, false, 0, "chat:write"},
		"not invited":           {body(`{"ok":false,"error":"not_in_channel"}`), false, false, 0, "invite it"},
		"a malformed message":   {body(`{"ok":false,"error":"invalid_blocks"}`), true, false, 0, "does not accept the form"},
		"an unknown error":      {body(`{"ok":false,"error":"` + planted + `"}`), false, false, 0, "a reason that this version does not know"},
		"a hang": {func(_ string, _ http.ResponseWriter, r *http.Request) bool {
			_, _ = io.Copy(io.Discard, r.Body)
			<-r.Context().Done()
			return true
		}, false, false, 0, "did not answer in time"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			at := slacktest.Start(t)
			at.Respond(c.respond)
			app := NewSlack(SlackConfig{Token: ledger.NewSecret(at.Token), URL: at.URL, Timeout: 300 * time.Millisecond})
			defer app.Close()
			_, err := app.Send(t.Context(), slacktest.Channel, "", askedInSlack())
			if err == nil || !strings.Contains(err.Error(), c.says) {
				t.Fatalf("the error is %v", err)
			}
			after, _ := RetryAfter(err)
			if Permanent(err) != c.permanent || RateLimited(err) != c.limited || after != c.after {
				t.Errorf("permanent %t, limited %t, after %v: %v", Permanent(err), RateLimited(err), after, err)
			}
			for _, secret := range []string{at.Token, planted, "127.0.0.1"} {
				if strings.Contains(err.Error(), secret) {
					t.Errorf("the error repeats %q: %v", secret, err)
				}
			}
			if len(at.Calls()) != 1 {
				t.Errorf("called %q", at.Calls())
			}
		})
	}
}

// A message that somebody has deleted is not an error when it is to be replaced.
func TestADeletedSlackMessageStaysDeleted(t *testing.T) {
	t.Parallel()
	at := slacktest.Start(t)
	if _, err := slackApp(t, at).Send(t.Context(), slacktest.Channel, "1600000000.000100", askedInSlack()); err != nil || len(at.Messages()) > 0 {
		t.Errorf("%d messages, %v", len(at.Messages()), err)
	}
}

// A press counts only if Slack has signed exactly these bytes within five minutes. An independent
// library agrees on every signature.
func TestOnlySlackPresses(t *testing.T) {
	t.Parallel()
	at := slacktest.Start(t)
	app, now := slackApp(t, at), time.Now()
	press := slacktest.Press{User: "U1", Action: SlackApprove, Value: "some value"}
	for name, c := range map[string]struct {
		change func(*slacktest.Press)
		edit   func(*http.Request, *[]byte)
		ok     bool
	}{
		"as it is":       {ok: true},
		"almost too old": {change: func(p *slacktest.Press) { p.At = now.Add(-slackSkew + 2*time.Second) }, ok: true},
		"old":            {change: func(p *slacktest.Press) { p.At = now.Add(-slackSkew - 2*time.Second) }},
		"of the future":  {change: func(p *slacktest.Press) { p.At = now.Add(slackSkew + 2*time.Second) }},
		"another secret": {change: func(p *slacktest.Press) { p.Secret = "guessed" }},
		"no signature":   {edit: func(r *http.Request, _ *[]byte) { r.Header.Del("X-Slack-Signature") }},
		"no timestamp":   {edit: func(r *http.Request, _ *[]byte) { r.Header.Del("X-Slack-Request-Timestamp") }},
		"another body":   {edit: func(_ *http.Request, body *[]byte) { *body = bytes.Replace(*body, []byte("U1"), []byte("U2"), 1) }},
		"a longer body":  {edit: func(_ *http.Request, body *[]byte) { *body = append(*body, "&a=b"...) }},
		"a signed timestamp": {edit: func(r *http.Request, _ *[]byte) {
			r.Header.Set("X-Slack-Request-Timestamp", "+"+r.Header.Get("X-Slack-Request-Timestamp"))
		}},
		"an upper-case hash": {edit: func(r *http.Request, _ *[]byte) {
			r.Header.Set("X-Slack-Signature", strings.ToUpper(r.Header.Get("X-Slack-Signature")))
		}},
	} {
		pressed := press
		if c.change != nil {
			c.change(&pressed)
		}
		r := at.Request(t, "http://127.0.0.1/", pressed)
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Fatal(err)
		}
		if c.edit != nil {
			c.edit(r, &body)
		}
		got, err := app.Press(r.Header.Get("X-Slack-Request-Timestamp"), r.Header.Get("X-Slack-Signature"), body, now)
		if c.ok && err == nil {
			if diff := cmp.Diff(&SlackPress{Team: slacktest.Team, User: "U1", Channel: slacktest.Channel, Action: SlackApprove, Value: "some value"}, got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", name, diff)
			}
		} else if c.ok || !errors.Is(err, ErrNotFromSlack) {
			t.Errorf("%s: %v", name, err)
		}
		if agrees := verifies(r.Header, at.SigningSecret, body); agrees != c.ok {
			t.Errorf("%s: the other library says %t", name, agrees)
		}
	}
}

// verifies is the judgement of an independent library.
func verifies(header http.Header, secret string, body []byte) bool {
	verifier, err := slack.NewSecretsVerifier(header, secret)
	if err != nil {
		return false
	}
	_, err = verifier.Write(body)
	return err == nil && verifier.Ensure() == nil
}

// What Slack signed but cannot be read as a press of a button is refused, and what is about something
// else asks for nothing.
func TestUnreadablePresses(t *testing.T) {
	t.Parallel()
	at := slacktest.Start(t)
	app, now := slackApp(t, at), time.Now()
	const user, channel, pressed = `"user":{"id":"U1","team_id":"T1"}`, `"channel":{"id":"C1"}`, `"actions":[{"action_id":"approve","value":"v"}]`
	form := func(payload string) string { return url.Values{"payload": {payload}}.Encode() }
	for name, c := range map[string]struct {
		body   string
		action string
		err    error
	}{
		"a press":               {form(`{"type":"block_actions",` + user + `,` + channel + `,` + pressed + `,"new":{"a":[1]}}`), SlackApprove, nil},
		"another type":          {form(`{"type":"view_submission"}`), "", nil},
		"the link":              {form(`{"type":"block_actions",` + user + `,` + channel + `,"actions":[{"action_id":"open"}]}`), "", nil},
		"no form":               {`{"type":"block_actions"}`, "", ErrSlackPress},
		"a broken form":         {`payload=%zz`, "", ErrSlackPress},
		"two payloads":          {form(`{}`) + "&" + form(`{}`), "", ErrSlackPress},
		"no JSON":               {form(`payload`), "", ErrSlackPress},
		"a name twice":          {form(`{"type":"block_actions",` + user + `,` + user + `,` + channel + `,` + pressed + `}`), "", ErrSlackPress},
		"no team of the user":   {form(`{"type":"block_actions","user":{"id":"U1"},"team":{"id":"T1"},` + channel + `,` + pressed + `}`), "", ErrSlackPress},
		"a user that is a path": {form(`{"type":"block_actions","user":{"id":"U1/U2","team_id":"T1"},` + channel + `,` + pressed + `}`), "", ErrSlackPress},
		"no channel":            {form(`{"type":"block_actions",` + user + `,` + pressed + `}`), "", ErrSlackPress},
		"two buttons":           {form(`{"type":"block_actions",` + user + `,` + channel + `,"actions":[{"action_id":"approve"},{"action_id":"deny"}]}`), "", ErrSlackPress},
		"no button":             {form(`{"type":"block_actions",` + user + `,` + channel + `}`), "", ErrSlackPress},
		"too much":              {"payload=" + strings.Repeat("x", MaxSlackPress), "", ErrSlackPress},
	} {
		r := at.Sign(t, "http://127.0.0.1/", []byte(c.body), now, at.SigningSecret)
		got, err := app.Press(r.Header.Get("X-Slack-Request-Timestamp"), r.Header.Get("X-Slack-Signature"), []byte(c.body), now)
		if !errors.Is(err, c.err) || err == nil && got.Action != c.action {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
}

// The largest message that the service can send fits, as Slack repeats it, into what is read of a
// press.
func TestAPressWithTheLargestMessageIsRead(t *testing.T) {
	t.Parallel()
	at := slacktest.Start(t)
	asked := askedInSlack()
	n, wide := &asked.Notice, strings.Repeat("😀", 5000)
	n.Organization, n.Chain, n.Environment, n.Agent, n.Action, n.Policy, n.Reason = wide, wide, wide, wide, wide, wide, wide
	n.Rules, asked.Votes, asked.Needed = slices.Repeat([]ledger.MatchedRule{{Name: wide, Reason: wide}}, 100), []string{wide}, 2
	if _, err := slackApp(t, at).Send(t.Context(), slacktest.Channel, "", asked); err != nil {
		t.Fatal(err)
	}
	shown := 0
	m := at.Messages()[0]
	for _, line := range append(m.Lines(), m.Text, m.Buttons()[SlackApprove].Confirm.Text.Text, m.Buttons()[SlackDeny].Confirm.Text.Text) {
		shown += len([]rune(line))
	}
	// Slack escapes a character outside of ASCII as two units of UTF-16 in JSON, and a form escapes
	// the backslashes. Besides the texts, there is the frame.
	const escaped, frame = len("%5Cud83d%5Cude00"), 20_000
	if needed := shown*escaped + frame; needed > MaxSlackPress {
		t.Errorf("a press may need %d bytes, and %d are read", needed, MaxSlackPress)
	}
}
