package notify

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"math/big"
	"net"
	"testing"
	"time"

	"github.com/emersion/go-sasl"
	"github.com/emersion/go-smtp"
)

const (
	testUser     = "ada"
	testPassword = "planted-word"
)

// postOffice is a real mail server on a loopback port.
type postOffice struct {
	arrived chan letterIn
	port    int

	onMail, onRcpt, onData error
	certificate            *tls.Certificate
	implicitTLS, signIn    bool
}

type letterIn struct {
	from string
	to   []string
	data string
	user string
	tls  bool
}

//countersign:host it runs a mail server
func (p *postOffice) open(t *testing.T) *postOffice {
	t.Helper()
	p.arrived = make(chan letterIn, 1)
	server := smtp.NewServer(smtp.BackendFunc(func(c *smtp.Conn) (smtp.Session, error) {
		s := &session{office: p, conn: c}
		if p.signIn {
			return &signInSession{s}, nil
		}
		return s, nil
	}))
	server.Domain = "localhost"
	server.EnableSMTPUTF8 = true
	server.ErrorLog = quiet{}
	server.ReadTimeout, server.WriteTimeout = 20*time.Second, 20*time.Second
	if p.certificate != nil {
		server.TLSConfig = &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{*p.certificate}}
	}
	listener := listen(t)
	p.port = listener.Addr().(*net.TCPAddr).Port
	if p.implicitTLS {
		listener = tls.NewListener(listener, server.TLSConfig)
	}
	done := make(chan error, 1)
	go func() { done <- server.Serve(listener) }()
	t.Cleanup(func() {
		_ = server.Close()
		<-done
	})
	return p
}

type quiet struct{}

func (quiet) Printf(string, ...any) {}
func (quiet) Println(...any)        {}

type session struct {
	office *postOffice
	conn   *smtp.Conn
	letter letterIn
}

func (s *session) Reset()        { s.letter = letterIn{user: s.letter.user} }
func (s *session) Logout() error { return nil }

func (s *session) Mail(from string, _ *smtp.MailOptions) error {
	s.letter.from = from
	return s.office.onMail
}

func (s *session) Rcpt(to string, _ *smtp.RcptOptions) error {
	s.letter.to = append(s.letter.to, to)
	return s.office.onRcpt
}

func (s *session) Data(r io.Reader) error {
	data, err := io.ReadAll(r)
	if err != nil {
		return err
	}
	if s.office.onData != nil {
		return s.office.onData
	}
	s.letter.data = string(data)
	_, s.letter.tls = s.conn.TLSConnectionState()
	s.office.arrived <- s.letter
	return nil
}

type signInSession struct{ *session }

func (s *signInSession) AuthMechanisms() []string { return []string{sasl.Plain} }

func (s *signInSession) Auth(string) (sasl.Server, error) {
	return sasl.NewPlainServer(func(_, user, password string) error {
		if user != testUser || password != testPassword {
			return smtp.ErrAuthFailed
		}
		s.letter.user = user
		return nil
	}), nil
}

// mailer returns a Mailer for the server, with the given settings.
func (p *postOffice) mailer(t *testing.T, scheme, user, settings string) *Mailer {
	t.Helper()
	return mailerAt(t, fmt.Sprintf("%s://%s127.0.0.1:%d?from=countersign@example.com%s", scheme, user, p.port, settings))
}

func mailerAt(t *testing.T, address string) *Mailer {
	t.Helper()
	m, err := ParseSMTP(address)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func listen(t *testing.T) net.Listener {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	return listener
}

// newCertificate creates a certificate for 127.0.0.1, and the pool that trusts it.
func newCertificate(t *testing.T) (*tls.Certificate, *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1),
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().Add(time.Hour),
		IPAddresses:  []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(leaf)
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}, roots
}
