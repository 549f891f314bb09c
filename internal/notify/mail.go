package notify

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	netmail "net/mail"
	"net/textproto"
	"strconv"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/wneessen/go-mail"
)

const maxRecipients = 50

// Send makes one attempt to mail the notice. The message id stays the same for all attempts and
// becomes the Message-ID, by which a mailbox recognizes a repetition. A server that refuses one
// recipient gets the message for none of them: use a delivery for each recipient if that matters.
func (m *Mailer) Send(ctx context.Context, messageID string, to []string, notice Notice) error {
	message, err := m.message(messageID, to, notice)
	if err != nil {
		return permanent(err)
	}
	timed, cancel := context.WithTimeout(ctx, m.timeout)
	defer cancel()
	line := &line{mailer: m}
	defer line.hangUp()
	// The library respects a context only while it connects.
	defer context.AfterFunc(timed, line.hangUp)()

	client, err := m.client(line)
	if err != nil {
		return permanent(errors.New("the mail server's settings cannot be used"))
	}
	err = client.DialAndSendWithContext(timed, message)
	if err == nil || message.IsDelivered() {
		return nil // the message was accepted, even if QUIT fails
	}
	if timed.Err() != nil && ctx.Err() == nil {
		err = timed.Err()
	}
	return refusal(ctx, err)
}

func (m *Mailer) message(messageID string, to []string, notice Notice) (*mail.Msg, error) {
	if err := errors.Join(checkMessageID(messageID), notice.check()); err != nil {
		return nil, err
	}
	recipients, err := parseRecipients(to)
	if err != nil {
		return nil, err
	}
	message := mail.NewMsg(mail.WithNoDefaultUserAgent())
	message.FromMailAddress(&m.from)
	message.ToMailAddress(recipients...)
	message.SetMessageIDWithValue(messageID + "@" + m.domain())
	// The date is that of the event, so that a repetition is the same message.
	message.SetDateWithValue(notice.At.Std())
	message.SetGenHeader("Auto-Submitted", "auto-generated")
	message.SetGenHeader("X-Auto-Response-Suppress", "All")
	message.Subject(subject(notice))
	content := compose(notice)
	message.SetBodyString(mail.TypeTextPlain, content.text())
	if err := message.AddAlternativeHTMLTemplate(letterPage, content); err != nil {
		return nil, fmt.Errorf("compose a mail: %w", err)
	}
	return message, nil
}

func parseRecipients(to []string) ([]*netmail.Address, error) {
	if len(to) == 0 || len(to) > maxRecipients {
		return nil, fmt.Errorf("a mail must have 1 to %d recipients", maxRecipients)
	}
	recipients := make([]*netmail.Address, len(to))
	for i, text := range to {
		parsed, err := netmail.ParseAddress(text)
		if err != nil {
			return nil, errors.New("a recipient must be an e-mail address")
		}
		recipients[i] = parsed
	}
	return recipients, nil
}

// domain is the right side of a Message-ID, which must be plain ASCII.
func (m *Mailer) domain() string {
	domain := m.from.Address[strings.LastIndex(m.from.Address, "@")+1:]
	for i := range len(domain) {
		if domain[i] >= utf8.RuneSelf {
			return "countersign.invalid"
		}
	}
	return domain
}

func (m *Mailer) client(line *line) (*mail.Client, error) {
	options := []mail.Option{
		mail.WithPort(m.port), mail.WithTimeout(m.timeout), mail.WithDialContextFunc(line.dial),
		mail.WithTLSPolicy(m.startTLS), mail.WithTLSConfig(m.security()), mail.WithoutNoop(),
	}
	if m.user != "" {
		options = append(options, mail.WithUsername(m.user), mail.WithPassword(m.password.Reveal()),
			mail.WithOpportunisticSMTPAuth(
				mail.SMTPAuthSCRAMSHA256, mail.SMTPAuthSCRAMSHA1, mail.SMTPAuthPlain, mail.SMTPAuthLogin))
	}
	return mail.NewClient(m.host, options...)
}

// refusal turns the library's error into a failure. A 5xx answer to the message is final. One to
// the connection or the sign-in is not: the operator can fix that, and the mail should then be
// sent.
func refusal(ctx context.Context, err error) error {
	var rejected *mail.SendError
	if errors.As(err, &rejected) && rejected.ErrorCode() != 0 && ctx.Err() == nil {
		return &failure{
			text:      fmt.Sprintf("the mail server answered %d while %v", rejected.ErrorCode(), rejected.Reason),
			permanent: rejected.ErrorCode() >= 500,
		}
	}
	var answer *textproto.Error
	if errors.As(err, &answer) && ctx.Err() == nil {
		return &failure{text: fmt.Sprintf(
			"the mail server answered %d before it took the message: check its user name and password", answer.Code)}
	}
	return unreachable(ctx, "the mail server", err, "broke the connection, or lacks STARTTLS or a known way to sign in")
}

// line is the connection of one delivery. It is separate from the library, which leaves connections
// open if the greeting, STARTTLS or the sign-in fails.
type line struct {
	mailer *Mailer

	mu   sync.Mutex
	conn net.Conn
	over bool
}

func (l *line) dial(ctx context.Context, network, _ string) (net.Conn, error) {
	address := net.JoinHostPort(l.mailer.host, strconv.Itoa(l.mailer.port))
	conn, err := l.mailer.connect(ctx, network, address)
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.over {
		_ = conn.Close()
		return nil, net.ErrClosed
	}
	l.conn = conn
	if l.mailer.implicitTLS {
		return tls.Client(conn, l.mailer.security()), nil
	}
	return conn, nil
}

func (l *line) hangUp() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.over = true
	if l.conn != nil {
		_ = l.conn.Close()
	}
}
