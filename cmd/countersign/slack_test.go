package main

import (
	"bytes"
	"io"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"countersign/internal/cli"
	"countersign/internal/notify/slacktest"
	"countersign/internal/servicetest"
)

// slackFlags gives the server the app of a Slack for tests.
func slackFlags(t *testing.T, at *slacktest.Slack) []string {
	t.Helper()
	folder := t.TempDir()
	token, secret := filepath.Join(folder, "token"), filepath.Join(folder, "secret")
	writeFile(t, token, []byte(at.Token+"\n"))
	writeFile(t, secret, []byte(at.SigningSecret+"\n"))
	return []string{"--slack-token-file", token, "--slack-signing-secret-file", secret, "--slack-api-url", at.URL}
}

// channel is what people see in Slack, and the server to which it sends presses.
type channel struct {
	*slacktest.Slack
	server *program
	told   int
}

// await waits until the newest message has certain lines.
func (c *channel) await(t *testing.T, lines ...string) slacktest.Message {
	t.Helper()
	var newest slacktest.Message
	servicetest.Eventually(t, "the channel says "+strings.Join(lines, ", "), func() bool {
		messages := c.Messages()
		if len(messages) == 0 {
			return false
		}
		newest = messages[len(messages)-1]
		for _, line := range lines {
			if !slices.Contains(newest.Lines(), line) {
				return false
			}
		}
		return true
	})
	return newest
}

// press sends a press and returns the server's answer, and what the member was told.
func (c *channel) press(t *testing.T, p slacktest.Press) (status int, told string) {
	t.Helper()
	return c.send(t, c.Request(t, c.server.address+"/v1/slack/interactions", p))
}

func (c *channel) send(t *testing.T, r *http.Request) (status int, told string) {
	t.Helper()
	response, err := servicetest.Client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode == http.StatusOK && len(body) > 0 {
		t.Errorf("Slack is answered %q, %v", body, err)
	}
	all := c.Told()
	told, c.told = strings.Join(all[c.told:], "\n"), len(all)
	return response.StatusCode, told
}

// An approval appears in Slack, a member presses a button, the waiting client may act, and the message
// shows the verdict. Whoever cannot prove to be Slack, is not entered at a key, or may not decide
// changes nothing. The doctor finds the setup in order, and the log names no secret and no member.
//
//countersign:race
func TestApprovalsInSlack(t *testing.T) {
	onEachStore(t, func(t *testing.T, s *testStore) {
		at := slacktest.Start(t)
		flags := slackFlags(t, at)
		p := start(t, append(append([]string{"--public-url", "https://countersign.example.com"}, flags...), s.flags...)...)
		admin, slack := p.admin(t), &channel{Slack: at, server: p}
		admin.call(t, http.MethodPatch, "/v1/organization", `{"slack_channel":"`+slacktest.Channel+`"}`, &struct{}{})
		create := func(words ...string) string {
			t.Helper()
			return succeed(t, s.args(append([]string{"keys", "create"}, words...)...)...)
		}
		member := decode[struct {
			ID string `json:"key_id"`
		}](t, create("--org", "default", "--role", "member", "--name", "ann", "--slack-member", slacktest.Team+"/U0ANN", "--json"))
		succeed(t, s.args("orgs", "create", "second")...)
		create("--org", "second", "--role", "admin", "--name", "bob", "--slack-member", slacktest.Team+"/U0BOB")
		agent := p.client(create("--org", "default", "--role", "agent", "--name", "robot"))

		id := agent.pay(t, `{"amount_usd":9000}`)
		m := slack.await(t, "Approval needed", "Agent: billing", "Action: pay_invoice", "Amount: 9,000.00 USD")
		if link := m.Buttons()["open"]; link == nil || link.URL != "https://countersign.example.com/approvals/"+id {
			t.Errorf("the link is %+v", link)
		}
		yes := slacktest.Press{User: "U0ANN", Action: "approve", Value: m.Buttons()["approve"].Value}
		for name, c := range map[string]struct {
			change func(*slacktest.Press)
			status int
			told   string
		}{
			"a forged signature":    {func(p *slacktest.Press) { p.Secret = "guessed" }, 401, ""},
			"an old signature":      {func(p *slacktest.Press) { p.At = time.Now().Add(-6 * time.Minute) }, 401, ""},
			"an unreadable payload": {func(p *slacktest.Press) { p.User = "nobody's" }, 422, ""},
			"a stranger":            {func(p *slacktest.Press) { p.User = "U0EVE" }, 200, "Your Slack member is " + slacktest.Team + "/U0EVE"},
			"another organization":  {func(p *slacktest.Press) { p.User = "U0BOB" }, 200, "you are not entered"},
			"an edited value":       {func(p *slacktest.Press) { p.Value = p.Value[:len(p.Value)-2] }, 200, "belongs to no approval"},
			"the other button":      {func(p *slacktest.Press) { p.Action = "deny" }, 200, "belongs to no approval"},
		} {
			press := yes
			c.change(&press)
			if status, told := slack.press(t, press); status != c.status || !strings.Contains(told, c.told) || (told == "") != (c.told == "") {
				t.Errorf("%s: %d, told %q", name, status, told)
			}
		}
		huge := at.Sign(t, p.address+"/v1/slack/interactions", bytes.Repeat([]byte("x"), 300<<10), time.Now(), at.SigningSecret)
		if status, _ := slack.send(t, huge); status != http.StatusRequestEntityTooLarge {
			t.Errorf("a huge request: %d", status)
		}
		if status := admin.approvalStatus(t, id); status != "pending" {
			t.Fatalf("before anybody may decide it is %s", status)
		}

		for range 2 { // the second time is harmless
			if status, told := slack.press(t, yes); status != http.StatusOK || told != "" {
				t.Errorf("approve: %d, told %q", status, told)
			}
		}
		var decided struct {
			Status   string
			Comment  string
			Reviewer struct{ Name string }
			Decision struct {
				Decision string `json:"policy_decision"`
			}
		}
		agent.call(t, http.MethodGet, "/v1/approvals/"+id+"?wait=30", "", &decided)
		if decided.Status != "approved" || decided.Comment != "approved in Slack" {
			t.Errorf("the client is answered %+v", decided)
		}
		if m = slack.await(t, "Approved", "Reviewer: ann"); m.Buttons()["approve"] != nil || m.Buttons()["deny"] != nil {
			t.Errorf("the verdict has buttons: %v", m.Buttons())
		}
		var log struct {
			Data []struct {
				Action string
				Detail map[string]any
			}
		}
		admin.call(t, http.MethodGet, "/v1/audit-log?limit=1", "", &log)
		if act := log.Data[0]; act.Action != "approval.approve" || act.Detail["slack_member"] != slacktest.Team+"/U0ANN" {
			t.Errorf("the audit log says %+v", act)
		}

		agent.pay(t, `{"amount_usd":8000}`)
		m = slack.await(t, "Approval needed", "Amount: 8,000.00 USD")
		admin.call(t, http.MethodPut, "/v1/policies", `{"rules":[{"name":"frozen","when":"true","decision":"deny","reason":"no payments today"}]}`, &struct{}{})
		yes.Value = m.Buttons()["approve"].Value
		if status, told := slack.press(t, yes); status != http.StatusOK || !strings.Contains(told, `the rule "frozen" denies the action now`) {
			t.Errorf("after a rule denies it: %d, told %q", status, told)
		}
		slack.await(t, "Denied", "Policy: frozen", "Amount: 8,000.00 USD")
		succeed(t, s.args("keys", "revoke", member.ID, "--org", "default")...)
		if status, told := slack.press(t, yes); status != http.StatusOK || !strings.Contains(told, "you are not entered") {
			t.Errorf("with a revoked key: %d, told %q", status, told)
		}
		if said := succeed(t, s.args(append([]string{"doctor"}, flags...)...)...); !strings.Contains(said, "Slack accepts the token of countersign in Example, and knows the channels of 1 organization") {
			t.Errorf("the doctor says %s", said)
		}
		succeed(t, s.args("audit", "--org", "default")...)
		for _, secret := range []string{at.Token, at.SigningSecret, "U0ANN", "U0EVE", slacktest.Channel} {
			if strings.Contains(p.log.String(), secret) {
				t.Errorf("the log has %q", secret)
			}
		}
	})
}

// Flags that cannot work are refused at the start, and the doctor says what is wrong with the token,
// with a channel, or with a server that lacks the app.
func TestSlackSetup(t *testing.T) {
	t.Parallel()
	s, at := migratedSQLite(t), slacktest.Start(t)
	flags := slackFlags(t, at)
	empty := filepath.Join(t.TempDir(), "empty")
	writeFile(t, empty, []byte("\n"))
	for says, words := range map[string][]string{
		"must be given together": flags[:2],
		"the token sends":        flags[2:4],
		"begins with xoxb-":      {flags[0], flags[3], flags[2], flags[1]}, // swapped
		"holds a token":          {flags[0], flags[1], flags[2], flags[1]},
		"is empty":               {flags[0], empty, flags[2], flags[3]},
		"missing":                {flags[0], filepath.Join(s.folder, "missing"), flags[2], flags[3]},
		"must use https":         append(slices.Clone(flags[:4]), "--slack-api-url", "http://slack.example.com/api/"),
		"must be a URL":          append(slices.Clone(flags[:4]), "--slack-api-url", "slack.com"),
	} {
		refuse(t, cli.ExitInconclusive, says, s.args(append([]string{"serve"}, words...)...)...)
	}
	p := start(t, s.flags...)
	admin := p.admin(t)
	if status := p.client("").status(t, http.MethodPost, "/v1/slack/interactions", "payload={}"); status != http.StatusNotFound {
		t.Errorf("a server without Slack answers %d", status)
	}
	refuse(t, cli.ExitFailed, "the flags of Slack are wrong, see below", s.args(append([]string{"doctor"}, flags[:2]...)...)...)
	doctor := append([]string{"doctor"}, flags...)
	if said := succeed(t, s.args(doctor...)...); !strings.Contains(said, "no organization has set a channel") {
		t.Errorf("without a channel, the doctor says %s", said)
	}
	admin.call(t, http.MethodPatch, "/v1/organization", `{"slack_channel":"C0OTHER"}`, &struct{}{})
	refuse(t, cli.ExitFailed, "does not know the channel", s.args(doctor...)...)
	if said := succeed(t, s.args("doctor")...); !strings.Contains(said, "a Slack channel is set in 1 organization, but this command was given no Slack app") {
		t.Errorf("without the app, the doctor says %s", said)
	}
	at.Refuse("token_revoked")
	refuse(t, cli.ExitFailed, "does not accept the token", s.args(doctor...)...)
	if len(at.Messages()) > 0 {
		t.Error("the doctor shows messages")
	}
}
