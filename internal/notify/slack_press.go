package notify

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"net/url"
	"regexp"
	"strconv"
	"time"

	"countersign/internal/canon"
)

// MaxSlackPress bounds a request that Slack sends when a button is pressed, in bytes. It repeats the
// message, in which every character can take sixteen bytes.
const MaxSlackPress = 256 << 10

// slackSkew is how far the time of a request may be from ours.
const slackSkew = 5 * time.Minute

// SlackPress is a button that a member pressed.
type SlackPress struct {
	Team, User string // who pressed it, by the ids of Slack
	Channel    string // where the message is
	Action     string // SlackApprove or SlackDeny; "" for anything else, about which there is nothing to do
	Value      string // of the button
}

// Member returns who pressed the button as API keys name them.
func (p *SlackPress) Member() string { return p.Team + "/" + p.User }

var (
	// ErrNotFromSlack says that a request is not signed by Slack, or not lately.
	ErrNotFromSlack = errors.New("the request is not signed by Slack, or was signed more than five minutes ago")
	// ErrSlackPress says that a request of Slack cannot be read.
	ErrSlackPress = errors.New("the request has no readable form field payload of Slack")
)

// Press checks that a request is from Slack, and reads it. timestamp and signature are its headers
// X-Slack-Request-Timestamp and X-Slack-Signature, and body is what was sent, byte by byte.
func (s *Slack) Press(timestamp, signature string, body []byte, now time.Time) (*SlackPress, error) {
	if len(body) > MaxSlackPress {
		return nil, ErrSlackPress
	}
	if !s.signed(timestamp, signature, body, now) {
		return nil, ErrNotFromSlack
	}
	form, err := url.ParseQuery(string(body))
	if err != nil || len(form["payload"]) != 1 {
		return nil, ErrSlackPress
	}
	payload, err := canon.Parse([]byte(form.Get("payload")))
	if err != nil {
		return nil, ErrSlackPress
	}
	return readPress(payload)
}

func (s *Slack) signed(timestamp, signature string, body []byte, now time.Time) bool {
	seconds, err := strconv.ParseUint(timestamp, 10, 40)
	if err != nil {
		return false
	}
	if age := now.Sub(time.Unix(int64(seconds), 0)); age > slackSkew || age < -slackSkew {
		return false
	}
	mac := hmac.New(sha256.New, []byte(s.config.SigningSecret.Reveal()))
	mac.Write([]byte("v0:" + timestamp + ":"))
	mac.Write(body)
	return hmac.Equal([]byte("v0="+hex.EncodeToString(mac.Sum(nil))), []byte(signature))
}

// slackID is the form of an id of Slack.
var slackID = regexp.MustCompile(`^[A-Z0-9]{1,31}$`)

// readPress reads a payload. Slack adds members from time to time, so unknown ones are ignored.
func readPress(payload canon.Value) (*SlackPress, error) {
	if text(payload, "type") != "block_actions" {
		return &SlackPress{}, nil
	}
	actions, _ := payload.Get("actions")
	if len(actions.Items()) != 1 {
		return nil, ErrSlackPress
	}
	pressed := actions.Items()[0]
	user, _ := payload.Get("user")
	channel, _ := payload.Get("channel")
	p := &SlackPress{Team: text(user, "team_id"), User: text(user, "id"), Channel: text(channel, "id")}
	for _, id := range []string{p.Team, p.User, p.Channel} {
		if !slackID.MatchString(id) {
			return nil, ErrSlackPress
		}
	}
	if action := text(pressed, "action_id"); action == SlackApprove || action == SlackDeny {
		p.Action, p.Value = action, text(pressed, "value")
	}
	return p, nil
}
