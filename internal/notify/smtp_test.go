package notify

import (
	"fmt"
	"strings"
	"testing"

	"github.com/wneessen/go-mail"
)

// A mail server URL gives the host, port, encryption, user and sender.
func TestParseSMTP(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		address  string
		host     string
		port     int
		implicit bool
		startTLS mail.TLSPolicy
		user     string
		from     string
	}{
		{"smtp://mx.example.com?from=a@example.com", "mx.example.com", 587, false, mail.TLSMandatory, "", "a@example.com"},
		{"smtp://mx.example.com:25/?from=a@example.com&starttls=off", "mx.example.com", 25, false, mail.NoTLS, "", "a@example.com"},
		{"smtp://mx?from=a@example.com&starttls=optional", "mx", 587, false, mail.TLSOpportunistic, "", "a@example.com"},
		{"smtp://ada%40x:s%2Fw@mx?from=a%2Bb@example.com&starttls=required", "mx", 587, false, mail.TLSMandatory, "ada@x", "a+b@example.com"},
		{"smtps://ada:w@[::1]?from=Ops%20%3Ca@example.com%3E\n", "::1", 465, true, mail.NoTLS, "ada", "a@example.com"},
	} {
		m, err := ParseSMTP(c.address)
		if err != nil {
			t.Errorf("%s: %v", c.address, err)
			continue
		}
		if m.host != c.host || m.port != c.port || m.implicitTLS != c.implicit || m.startTLS != c.startTLS ||
			m.user != c.user || m.from.Address != c.from {
			t.Errorf("%s: read as %v, implicit %v, %v, %s, %v", c.address, m, m.implicitTLS, m.startTLS, m.user, m.from)
		}
	}
}

// An invalid mail server URL is refused without revealing its password, and a valid one is printed
// without it.
func TestParseSMTPKeepsSecrets(t *testing.T) {
	t.Parallel()
	const planted = "planted"
	for _, address := range []string{
		"",
		planted,
		"://" + planted,
		"smtp://ada:" + planted,
		"smtp://ada:" + planted + "@mx",
		"smtp://ada:" + planted + "%zz@mx?from=a@example.com",
		"smtp://ada:" + planted + "#@mx?from=a@example.com",
		"smtp://ada:" + planted + "@?from=a@example.com",
		"smtp://ada:" + planted + "@mx:0?from=a@example.com",
		"smtp://ada:" + planted + "@mx:port?from=a@example.com",
		"smtp://ada:" + planted + "@mx/path?from=a@example.com",
		"smtp://ada:" + planted + "@mx?from=a@example.com#x",
		"smtp://ada:" + planted + "@mx?from=nobody",
		"smtp://ada:" + planted + "@mx?from=a+b@example.com",
		"smtp://ada:" + planted + "@mx?from=a@example.com&from=b@example.com",
		"smtp://ada:" + planted + "@mx?from=a@example.com&" + planted + "=1",
		"smtp://ada:" + planted + "@mx?from=a@example.com&starttls=" + planted,
		"smtp://ada:" + planted + "@mx?from=a@example.com&starttls=off",
		"smtp://ada:" + planted + "@mx?from=a@example.com&starttls=optional",
		"smtps://ada:" + planted + "@mx?from=a@example.com&starttls=required",
		"smtp://" + planted + "@mx?from=a@example.com",
		"smtp://:" + planted + "@mx?from=a@example.com",
		"https://ada:" + planted + "@mx?from=a@example.com",
		"smtp://ada:" + planted + "@mx?from=a@example.com&" + strings.Repeat("x", maxURL),
	} {
		m, err := ParseSMTP(address)
		if err == nil {
			t.Errorf("%.80q was read as %v", address, m)
		} else if strings.Contains(err.Error(), planted) {
			t.Errorf("%.80q: %v", address, err)
		}
	}
	m, err := ParseSMTP("smtps://ada:" + planted + "@mx?from=a@example.com")
	if err != nil {
		t.Fatal(err)
	}
	for _, format := range []string{"%v", "%+v", "%#v", "%s"} {
		if text := fmt.Sprintf(format, m); strings.Contains(text, planted) {
			t.Errorf("printed with %s: %s", format, text)
		}
	}
}
