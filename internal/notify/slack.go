package notify

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"time"

	"countersign/internal/ledger"
)

const (
	// SlackURL is where the methods of Slack's API are.
	SlackURL = "https://slack.com/api/"

	slackTimeout = 10 * time.Second // for one call
	slackPause   = 30 * time.Second // if Slack takes no more messages and does not say for how long
	// maxSlackAnswer bounds an answer in bytes. The answer to a message repeats the message.
	maxSlackAnswer = 512 << 10
)

// SlackConfig configures a Slack app. URL and Timeout are optional.
type SlackConfig struct {
	Token         ledger.Secret // bot token
	SigningSecret ledger.Secret // signs what Slack sends
	URL           string        // where the methods of the API are, with a slash at its end
	Timeout       time.Duration // bounds one call
}

// Slack calls Slack's API as an app, and reads what Slack sends to it. It is safe for concurrent use
// and follows no redirects.
type Slack struct {
	transport *http.Transport // used without an http.Client, which would follow redirects
	config    SlackConfig
}

// NewSlack returns a Slack that trusts the system's certificate authorities, and uses the proxy that
// the environment names.
func NewSlack(config SlackConfig) *Slack {
	config.URL = cmp.Or(config.URL, SlackURL)
	config.Timeout = cmp.Or(config.Timeout, slackTimeout)
	return &Slack{config: config, transport: &http.Transport{
		Proxy:                  http.ProxyFromEnvironment,
		TLSClientConfig:        &tls.Config{MinVersion: tls.VersionTLS12},
		TLSHandshakeTimeout:    connectTimeout,
		MaxResponseHeaderBytes: maxAnswerHeader,
		MaxIdleConnsPerHost:    4,
		IdleConnTimeout:        30 * time.Second,
	}}
}

// Close closes idle connections.
func (s *Slack) Close() { s.transport.CloseIdleConnections() }

// SlackIdentity is who a token belongs to.
type SlackIdentity struct{ Team, User string }

// Check asks whether Slack accepts the token.
func (s *Slack) Check(ctx context.Context) (SlackIdentity, error) {
	answer, err := s.call(ctx, "auth.test", struct{}{})
	if err != nil {
		return SlackIdentity{}, err
	}
	return SlackIdentity{Team: oneLine(answer.Team, maxName), User: oneLine(answer.User, maxName)}, nil
}

// CheckChannel asks whether Slack knows a channel. It asks for a change of a message that cannot
// exist, because that needs no permission besides the one to write messages, and changes nothing.
func (s *Slack) CheckChannel(ctx context.Context, channel string) error {
	_, err := s.call(ctx, "chat.update", slackMessage{Channel: channel, TS: "0000000001.000000", Text: "-", Parse: "none"})
	if slackCode(err) == messageNotFound {
		return nil
	}
	if err == nil {
		return errors.New("Slack changed a message that cannot exist")
	}
	return err
}

// Send posts a message to a channel and returns its timestamp, which identifies it there. If ts is
// given, Send replaces that message instead; one that somebody has deleted stays deleted.
func (s *Slack) Send(ctx context.Context, channel, ts string, approval *SlackApproval) (string, error) {
	message := approval.message()
	message.Channel, message.TS = channel, ts
	if ts != "" {
		_, err := s.call(ctx, "chat.update", message)
		if slackCode(err) == messageNotFound {
			err = nil
		}
		return ts, err
	}
	answer, err := s.call(ctx, "chat.postMessage", message)
	if err != nil {
		return "", err
	}
	if !slackTimestamp.MatchString(answer.TS) {
		return "", errNotSlack
	}
	return answer.TS, nil
}

// Tell shows a text to one member in a channel, and to nobody else.
func (s *Slack) Tell(ctx context.Context, channel, user, text string) error {
	text = cut(text, maxSlackText)
	_, err := s.call(ctx, "chat.postEphemeral", slackMessage{
		Channel: channel, User: user, Text: slackEscapes.Replace(text), Parse: "none", Blocks: []slackBlock{{Type: "section", Text: plain(text)}},
	})
	return err
}

var slackTimestamp = regexp.MustCompile(`^\d{10}\.\d{6}$`)

// slackAnswer is what is read of an answer.
type slackAnswer struct {
	OK    bool   `json:"ok"`
	Error string `json:"error"`
	TS    string `json:"ts"`
	Team  string `json:"team"`
	User  string `json:"user"`
}

var errNotSlack = &failure{class: ClassStatus, text: "Slack answered what its API does not answer"}

func (s *Slack) call(ctx context.Context, method string, arguments any) (*slackAnswer, error) {
	timed, cancel := context.WithTimeout(ctx, s.config.Timeout)
	defer cancel()
	body, err := json.Marshal(arguments)
	if err != nil {
		return nil, permanent(errors.New("a message to Slack could not be encoded"))
	}
	request, err := http.NewRequestWithContext(timed, http.MethodPost, s.config.URL+method, bytes.NewReader(body))
	if err != nil {
		return nil, permanent(errors.New("the address of Slack's API cannot be requested"))
	}
	request.Header.Set("Authorization", "Bearer "+s.config.Token.Reveal())
	request.Header.Set("Content-Type", "application/json; charset=utf-8")
	request.Header.Set("User-Agent", "countersign")
	response, err := s.transport.RoundTrip(request)
	if err != nil {
		return nil, unreachable(ctx, "Slack", err, "broke the connection, or answered what is not HTTP")
	}
	defer response.Body.Close()
	if err := judgeSlack(response); err != nil {
		return nil, err
	}
	content, err := io.ReadAll(io.LimitReader(response.Body, maxSlackAnswer+1))
	if err != nil {
		return nil, unreachable(ctx, "Slack", err, "broke the connection")
	}
	var answer slackAnswer
	if len(content) > maxSlackAnswer || json.Unmarshal(content, &answer) != nil {
		return nil, errNotSlack
	}
	if !answer.OK {
		return nil, refusedBySlack(answer.Error)
	}
	return &answer, nil
}

func judgeSlack(response *http.Response) error {
	switch status := response.StatusCode; {
	case status == http.StatusOK:
		return nil
	case status == http.StatusTooManyRequests:
		return tooManyForSlack(parseRetryAfter(response.Header.Get("Retry-After"), time.Now()))
	default:
		return &failure{class: ClassStatus, text: fmt.Sprintf("Slack answered %d", status)}
	}
}

func tooManyForSlack(wait time.Duration) error {
	return &failure{class: ClassStatus, text: "Slack answered that there are too many messages", limited: true, retryAfter: cmp.Or(wait, slackPause)}
}

// slackFault is what an error code of Slack means here. A permanent one is about the message itself;
// the others can be fixed by people, and the message should then be sent.
type slackFault struct {
	words     string
	permanent bool
}

const (
	messageNotFound = "message_not_found"
	slackTokenWords = "does not accept the token: check the file of the bot token"
	slackOwnFault   = "has a fault of its own"
	slackMalformed  = "does not accept the form of the message"
)

// slackFaults has the codes that this version knows. Others are not repeated in errors: they are what
// a peer says.
var slackFaults = map[string]slackFault{
	"not_authed":             {slackTokenWords, false},
	"invalid_auth":           {slackTokenWords, false},
	"account_inactive":       {slackTokenWords, false},
	"token_expired":          {slackTokenWords, false},
	"token_revoked":          {slackTokenWords, false},
	"not_allowed_token_type": {"does not accept this kind of token: give the bot token, which begins with xoxb-", false},
	"missing_scope":          {"says that the app lacks a permission: give it chat:write, and install it again", false},
	"channel_not_found":      {"does not know the channel: check its id, and invite the app to it", false},
	"not_in_channel":         {"says that the app is not in the channel: invite it", false},
	"is_archived":            {"says that the channel is archived", false},
	"restricted_action":      {"does not let the app write in the channel", false},
	"user_not_in_channel":    {"says that the member is not in the channel", true},
	"internal_error":         {slackOwnFault, false},
	"fatal_error":            {slackOwnFault, false},
	"service_unavailable":    {slackOwnFault, false},
	"request_timeout":        {slackOwnFault, false},
	"invalid_blocks":         {slackMalformed, true},
	"invalid_arguments":      {slackMalformed, true},
	"msg_too_long":           {slackMalformed, true},
	"msg_blocks_too_long":    {slackMalformed, true},
	"no_text":                {slackMalformed, true},
	messageNotFound:          {"has no such message", true},
	"cant_update_message":    {"does not let the app change the message: another app or token wrote it", true},
	"edit_window_closed":     {"does not let messages of this age be changed", true},
}

// slackRefusal is a failure with its code.
type slackRefusal struct {
	*failure
	code string
}

func (r *slackRefusal) Unwrap() error { return r.failure }

func refusedBySlack(code string) error {
	if code == "ratelimited" || code == "rate_limited" {
		return tooManyForSlack(0)
	}
	known, ok := slackFaults[code]
	if !ok {
		return &failure{class: ClassStatus, text: "Slack refused the call for a reason that this version does not know"}
	}
	return &slackRefusal{&failure{class: ClassStatus, text: fmt.Sprintf("Slack %s (%s)", known.words, code), permanent: known.permanent}, code}
}

func slackCode(err error) string {
	var refusal *slackRefusal
	if errors.As(err, &refusal) {
		return refusal.code
	}
	return ""
}
