package anchor_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"countersign/internal/anchor/anchortest"
)

// standing is a real authority that runs during the test.
type standing struct {
	url   string
	roots []byte
}

// startAuthority starts the authority of an independent library.
func startAuthority(t *testing.T, options anchortest.Options) standing {
	t.Helper()
	authority := anchortest.Start(t, options)
	return standing{url: authority.URL, roots: authority.Roots}
}

// openssl is an authority based on `openssl ts`, behind a real socket.
type openssl struct {
	standing
	folder string
	reply  sync.Mutex // openssl counts its replies in a file
}

const opensslConfig = `
[tsa]
default_tsa = authority
[authority]
serial = serial
signer_digest = sha256
default_policy = 1.2.3.4.1
other_policies = 1.2.3.4.2
digests = sha256, sha512
accuracy = secs:1
ordering = yes
tsa_name = yes
ess_cert_id_chain = no
ess_cert_id_alg = sha256
[signer]
extendedKeyUsage = critical,timeStamping
keyUsage = critical,digitalSignature
`

// startOpenSSL creates a root and an authority's certificate that is valid for some days from now,
// with keys of the algorithm.
func startOpenSSL(t *testing.T, days string, algorithm ...string) *openssl {
	t.Helper()
	if _, err := exec.LookPath("openssl"); err != nil {
		t.Fatalf("there is no openssl: run apt-get install openssl (%v)", err)
	}
	authority := &openssl{folder: t.TempDir()}
	authority.write(t, "ts.cnf", []byte(opensslConfig))
	authority.write(t, "serial", []byte("01\n"))
	for _, name := range []string{"root", "signer"} {
		authority.run(t.Context(), t, append([]string{"genpkey", "-out", name + ".key"}, algorithm...)...)
	}
	authority.run(t.Context(), t, "req", "-x509", "-new", "-key", "root.key", "-subj", "/CN=Root", "-days", "30", "-out", "root.pem")
	authority.run(t.Context(), t, "req", "-new", "-key", "signer.key", "-subj", "/CN=Second Authority", "-out", "signer.csr")
	authority.run(t.Context(), t, "x509", "-req", "-in", "signer.csr", "-CA", "root.pem", "-CAkey", "root.key", "-CAcreateserial",
		"-days", days, "-extfile", "ts.cnf", "-extensions", "signer", "-out", "signer.pem")
	server := httptest.NewServer(http.HandlerFunc(func(writer http.ResponseWriter, request *http.Request) {
		query, err := io.ReadAll(request.Body)
		if err != nil {
			t.Error(err)
		}
		writer.Header().Set("Content-Type", "application/timestamp-reply")
		_, _ = writer.Write(authority.answer(request.Context(), t, query))
	}))
	t.Cleanup(server.Close)
	authority.url, authority.roots = server.URL, authority.read(t, "root.pem")
	return authority
}

func (o *openssl) answer(ctx context.Context, t *testing.T, query []byte) []byte {
	o.reply.Lock()
	defer o.reply.Unlock()
	o.write(t, "query.tsq", query)
	o.run(ctx, t, "ts", "-reply", "-config", "ts.cnf", "-queryfile", "query.tsq",
		"-signer", "signer.pem", "-inkey", "signer.key", "-out", "reply.tsr")
	return o.read(t, "reply.tsr")
}

func (o *openssl) run(ctx context.Context, t *testing.T, arguments ...string) {
	t.Helper()
	if output, err := runOpenSSL(ctx, o.folder, arguments...); err != nil {
		t.Errorf("openssl %s: %v\n%s", strings.Join(arguments, " "), err, output)
	}
}

func runOpenSSL(ctx context.Context, folder string, arguments ...string) ([]byte, error) {
	command := exec.CommandContext(ctx, "openssl", arguments...)
	command.Dir = folder
	return command.CombinedOutput()
}

func (o *openssl) write(t *testing.T, name string, data []byte) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(o.folder, name), data, 0o600); err != nil {
		t.Error(err)
	}
}

func (o *openssl) read(t *testing.T, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(o.folder, name))
	if err != nil {
		t.Error(err)
	}
	return data
}
