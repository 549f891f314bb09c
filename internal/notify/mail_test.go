package notify

import (
	"io"
	"mime"
	"mime/multipart"
	"mime/quotedprintable"
	netmail "net/mail"
	"strings"
	"testing"

	"github.com/emersion/go-smtp"
	"github.com/google/go-cmp/cmp"

	"countersign/internal/ledger"
)

var reviewers = []string{"grace@example.com"}

// read parses a mail like a mail program: its headers, and its parts by type.
func read(t *testing.T, in letterIn) (netmail.Header, map[string]string) {
	t.Helper()
	message, err := netmail.ReadMessage(strings.NewReader(in.data))
	if err != nil {
		t.Fatal(err)
	}
	_, parameters, err := mime.ParseMediaType(message.Header.Get("Content-Type"))
	if err != nil {
		t.Fatal(err)
	}
	parts := map[string]string{}
	reader := multipart.NewReader(message.Body, parameters["boundary"])
	for range 2 {
		part, err := reader.NextRawPart()
		if err != nil {
			t.Fatal(err)
		}
		kind, _, err := mime.ParseMediaType(part.Header.Get("Content-Type"))
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(quotedprintable.NewReader(part))
		if err != nil {
			t.Fatal(err)
		}
		parts[kind] = strings.ReplaceAll(string(content), "\r\n", "\n")
	}
	return message.Header, parts
}

// A mail arrives with readable text and HTML parts, escaped names and no ids.
func TestSendDeliversAReadableLetter(t *testing.T) {
	t.Parallel()
	office := (&postOffice{}).open(t)
	notice := fullNotice()
	notice.Agent, notice.Chain = "Größe <b>&", "返金フロー"
	if err := office.mailer(t, "smtp", "", "&starttls=off").Send(t.Context(), testMessage, reviewers, notice); err != nil {
		t.Fatal(err)
	}
	in := <-office.arrived
	if in.from != "countersign@example.com" || !cmp.Equal(in.to, reviewers) {
		t.Errorf("from %s to %v", in.from, in.to)
	}
	header, parts := read(t, in)
	subject, err := new(mime.WordDecoder).DecodeHeader(header.Get("Subject"))
	if err != nil || subject != "[acme] Approval needed: issue_refund by Größe <b>& in 返金フロー" {
		t.Errorf("subject %q, %v", subject, err)
	}
	for name, want := range map[string]string{
		"Message-Id":     "<" + testMessage + "@example.com>",
		"Auto-Submitted": "auto-generated",
		"Date":           "Wed, 04 Mar 2026 12:00:00 +0000",
		"To":             "<grace@example.com>",
		"User-Agent":     "",
	} {
		if got := header.Get(name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	wantText := `Approval needed

Organization: acme
Chain:        返金フロー
Environment:  production
Agent:        Größe <b>&
Action:       issue_refund
Amount:       18,450.75 USD
Policy:       large-refunds
Reason:       refunds above 500 USD
Rule:         large-refunds (require_approval): refunds above 500 USD
Rule:         night-shift (deny, in shadow): nobody is there
Status:       pending
Reviewer:     Ada
Decided by:   a person
Time:         4 March 2026, 12:00 UTC
Expires:      5 March 2026, 12:00 UTC

Open the console to decide. Opening the link decides nothing by itself.

https://countersign.example.com/console/approvals
`
	if diff := cmp.Diff(wantText, parts["text/plain"]); diff != "" {
		t.Error(diff)
	}
	for _, want := range []string{"Größe &lt;b&gt;&amp;", `<a href="https://countersign.example.com/console/approvals">`} {
		if !strings.Contains(parts["text/html"], want) {
			t.Errorf("the HTML part lacks %s: %s", want, parts["text/html"])
		}
	}
	for _, id := range []string{notice.ChainID, notice.ApprovalID, notice.ReceiptID} {
		if strings.Contains(in.data, id) {
			t.Errorf("the mail holds %s", id)
		}
	}
}

// A mail that is sent again has the same Message-ID.
func TestARepetitionCanBeRecognised(t *testing.T) {
	t.Parallel()
	office := (&postOffice{}).open(t)
	m := office.mailer(t, "smtp", "", "&starttls=off")
	var ids []string
	for _, message := range []string{"job_1", "job_1", "job_2"} {
		if err := m.Send(t.Context(), message, reviewers, fullNotice()); err != nil {
			t.Fatal(err)
		}
		header, _ := read(t, <-office.arrived)
		ids = append(ids, header.Get("Message-Id"))
	}
	if ids[0] != ids[1] || ids[0] == ids[2] {
		t.Error(ids)
	}
}

// Names with line breaks or control characters cannot add headers or recipients to a mail.
func TestNamesCannotAddHeaders(t *testing.T) {
	t.Parallel()
	office := (&postOffice{}).open(t)
	notice := Notice{Kind: ChainCompleted, At: ledger.TimeOf(noon), Organization: "acme\r\nBcc: eve@example.com"}
	notice.Action = "pay\r\n\r\nbody\u2028\u202Eevil\x00"
	notice.Agent = "=?utf-8?q?=0D=0A?=" + strings.Repeat("é", 500)
	if err := office.mailer(t, "smtp", "", "&starttls=off").Send(t.Context(), testMessage, reviewers, notice); err != nil {
		t.Fatal(err)
	}
	in := <-office.arrived
	header, _ := read(t, in)
	subject, err := new(mime.WordDecoder).DecodeHeader(header.Get("Subject"))
	if err != nil || len([]rune(subject)) > maxSubject || strings.ContainsAny(subject, "\r\n\x00\u2028\u202E") ||
		!strings.HasPrefix(subject, "[acme Bcc: eve@example.com] Chain completed: pay body evil by = ?utf-8") {
		t.Errorf("subject %q, %v", subject, err)
	}
	if header.Get("Bcc") != "" || !cmp.Equal(in.to, reviewers) {
		t.Errorf("Bcc %q, recipients %v", header.Get("Bcc"), in.to)
	}
}

// A temporary refusal of a mail is retried and a permanent one is not, and the error contains
// nothing of the mail or the answer.
func TestServerAnswersAreJudged(t *testing.T) {
	t.Parallel()
	answer := func(code int) error {
		return &smtp.SMTPError{Code: code, EnhancedCode: smtp.EnhancedCode{code / 100, 1, 1}, Message: "planted words"}
	}
	for name, c := range map[string]struct {
		office    postOffice
		code      string
		permanent bool
	}{
		"sender 451":    {postOffice{onMail: answer(451)}, "451", false},
		"sender 550":    {postOffice{onMail: answer(550)}, "550", true},
		"recipient 450": {postOffice{onRcpt: answer(450)}, "450", false},
		"recipient 550": {postOffice{onRcpt: answer(550)}, "550", true},
		"content 452":   {postOffice{onData: answer(452)}, "452", false},
		"content 554":   {postOffice{onData: answer(554)}, "554", true},
	} {
		m := c.office.open(t).mailer(t, "smtp", "", "&starttls=off")
		err := m.Send(t.Context(), testMessage, reviewers, fullNotice())
		if err == nil || Permanent(err) != c.permanent || !strings.Contains(err.Error(), c.code) {
			t.Errorf("%s: %v, permanent %v", name, err, Permanent(err))
			continue
		}
		for _, secret := range []string{"planted", reviewers[0], testMessage} {
			if strings.Contains(err.Error(), secret) {
				t.Errorf("%s: %q holds %q", name, err, secret)
			}
		}
	}
}

// Mail is sent only with the configured encryption, to a server with a trusted certificate, and the
// error contains no password.
func TestEncryptionAndSignIn(t *testing.T) {
	t.Parallel()
	certificate, roots := newCertificate(t)
	right, wrong := testUser+":"+testPassword+"@", testUser+":planted-mistake@"
	plain := postOffice{}
	startTLS := postOffice{certificate: certificate, signIn: true}
	implicit := postOffice{certificate: certificate, signIn: true, implicitTLS: true}
	for name, c := range map[string]struct {
		office                 postOffice
		scheme, user, settings string
		untrusted              bool
		want                   string // part of the error
		tls                    bool
	}{
		"STARTTLS":                   {office: startTLS, scheme: "smtp", user: right, tls: true},
		"TLS from the start":         {office: implicit, scheme: "smtps", user: right, tls: true},
		"STARTTLS, optional":         {office: startTLS, scheme: "smtp", settings: "&starttls=optional", tls: true},
		"no STARTTLS, optional":      {office: plain, scheme: "smtp", settings: "&starttls=optional"},
		"no STARTTLS, required":      {office: plain, scheme: "smtp", want: "lacks STARTTLS"},
		"no sign-in":                 {office: postOffice{certificate: certificate}, scheme: "smtp", user: right, want: "sign in"},
		"wrong password":             {office: startTLS, scheme: "smtp", user: wrong, want: "535"},
		"wrong password, smtps":      {office: implicit, scheme: "smtps", user: wrong, want: "535"},
		"unknown issuer":             {office: startTLS, scheme: "smtp", user: right, untrusted: true, want: "certificate"},
		"unknown issuer, smtps":      {office: implicit, scheme: "smtps", user: right, untrusted: true, want: "certificate"},
		"plain words to a TLS port":  {office: plain, scheme: "smtps", user: right, want: "TLS 1.2"},
		"optional is no blind trust": {office: startTLS, scheme: "smtp", settings: "&starttls=optional", untrusted: true, want: "certificate"},
	} {
		office := c.office.open(t)
		m := office.mailer(t, c.scheme, c.user, c.settings)
		if !c.untrusted {
			m.roots = roots
		}
		err := m.Send(t.Context(), testMessage, reviewers, fullNotice())
		if c.want != "" {
			if err == nil || Permanent(err) || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "planted") {
				t.Errorf("%s: %v, permanent %v", name, err, Permanent(err))
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if in := <-office.arrived; in.tls != c.tls || (in.user != "") != (c.user != "") {
			t.Errorf("%s: TLS %v, user %q", name, in.tls, in.user)
		}
	}
}
