package main

import (
	"encoding/binary"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"countersign/internal/anchor/anchortest"
	"countersign/internal/cli"
	"countersign/internal/servicetest"
)

// startAuthority runs a timestamp authority and writes its certificates to a file.
func startAuthority(t *testing.T, options anchortest.Options) (address, roots string) {
	t.Helper()
	authority := anchortest.Start(t, options)
	roots = filepath.Join(t.TempDir(), "roots.pem")
	writeFile(t, roots, authority.Roots)
	return authority.URL, roots
}

// startPromises runs a calendar that promises, and has no block yet.
func startPromises(t *testing.T) (address string) {
	t.Helper()
	routes := http.NewServeMux()
	routes.HandleFunc("POST /digest", func(w http.ResponseWriter, _ *http.Request) {
		counted := func(data string) string {
			return string(binary.AppendUvarint(nil, uint64(len(data)))) + data
		}
		_, _ = io.WriteString(w, "\x00\x83\xdf\xe3\x0d\x2e\xf9\x0c\x8e"+counted(counted(address)))
	})
	server := httptest.NewServer(routes)
	t.Cleanup(server.Close)
	address = server.URL
	return address
}

type anchorsAnswer struct {
	Verification struct {
		Anchors struct {
			TSA            struct{ Status string }
			OpenTimestamps struct{ Status string }
		} `json:"timestamp_anchors"`
	}
}

// anchors are the standings of both anchors of an artifact.
func (c *client) anchors(t *testing.T, artifact string) string {
	t.Helper()
	var answer anchorsAnswer
	c.call(t, http.MethodGet, "/v1/verification/v2/"+artifact, "", &answer)
	found := answer.Verification.Anchors
	return found.TSA.Status + "/" + found.OpenTimestamps.Status
}

// A server with a timestamp authority and a calendar anchors receipts and decisions,
// and counts the anchors in its metrics.
func TestAnchorsFromServer(t *testing.T) {
	onEachStore(t, func(t *testing.T, s *testStore) {
		authority, roots := startAuthority(t, anchortest.Options{})
		flags := append([]string{"--tsa-url", authority, "--tsa-roots", roots, "--ots-calendars", startPromises(t), "--metrics-listen", "127.0.0.1:0"}, s.flags...)
		server := start(t, flags...)
		admin := server.admin(t)
		receipt := admin.seal(t).ReceiptID
		if found := admin.anchors(t, "receipts/"+receipt); found != "not_anchored/not_anchored" {
			t.Errorf("at first the receipt is %s", found)
		}
		if status := admin.status(t, http.MethodPost, "/v1/verification/v2/anchors", ""); status != http.StatusAccepted {
			t.Fatalf("asking for an anchor gets %d", status)
		}
		servicetest.Eventually(t, "the receipt is anchored", func() bool { return admin.anchors(t, "receipts/"+receipt) == "verified/pending" })
		approval := admin.pay(t, `{"amount_usd":9000}`)
		reviewer := server.client(succeed(t, s.args("keys", "create", "--org", "default", "--role", "member")...))
		reviewer.call(t, http.MethodPost, "/v1/approvals/"+approval+"/approve", "{}", &struct{}{})
		servicetest.Eventually(t, "the decision is anchored", func() bool { return admin.anchors(t, "approvals/"+approval) == "verified/pending" })
		metrics := &client{base: metricsPattern.FindStringSubmatch(server.log.String())[1], http: servicetest.Client}
		servicetest.Eventually(t, "the anchors are counted", func() bool {
			_, body, err := metrics.send(t.Context(), http.MethodGet, "", "")
			return err == nil && strings.Contains(string(body), `countersign_anchors_total{method="tsa",status="verified"} 2`) &&
				strings.Contains(string(body), `countersign_anchors_total{method="opentimestamps",status="pending"} 2`)
		})
	})
}

// A root that is taken out is not believed from the next start on, and what it stamped
// has failed; with the root restored, alone and without an authority to ask, it holds
// again.
//
//countersign:race
func TestRootTakenOut(t *testing.T) {
	onEachStore(t, func(t *testing.T, s *testStore) {
		authority, roots := startAuthority(t, anchortest.Options{})
		_, strangers := startAuthority(t, anchortest.Options{})
		server := start(t, append([]string{"--tsa-url", authority, "--tsa-roots", roots}, s.flags...)...)
		admin := server.admin(t)
		receipt := "receipts/" + admin.seal(t).ReceiptID
		admin.status(t, http.MethodPost, "/v1/verification/v2/anchors", "")
		servicetest.Eventually(t, "the receipt is anchored", func() bool { return admin.anchors(t, receipt) == "verified/not_anchored" })
		for _, next := range []struct {
			flags []string
			want  string
		}{
			{[]string{"--tsa-url", authority, "--tsa-roots", strangers}, "failed/not_anchored"},
			{nil, "failed/not_anchored"},
			{[]string{"--tsa-roots", roots}, "verified/not_anchored"},
		} {
			server.stop(t)
			server = start(t, append(next.flags, s.flags...)...)
			if found := server.client(admin.key).anchors(t, receipt); found != next.want {
				t.Errorf("with %q the receipt is %s, want %s", next.flags, found, next.want)
			}
		}
		server.stop(t)
		succeed(t, s.args("audit")...)
	})
}

// Anchor settings that cannot work stop the server at its start, and the error
// repeats no value that may be secret.
func TestAnchorSettingsAreChecked(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	empty := filepath.Join(folder, "empty.pem")
	writeFile(t, empty, nil)
	for name, test := range map[string]struct {
		flags []string
		says  string
	}{
		"an authority without roots": {[]string{"--tsa-url", "https://planted-word.example"}, "--tsa-roots"},
		"a policy for nobody":        {[]string{"--tsa-policy", "1.2.3"}, "--tsa-url"},
		"roots alone that are none":  {[]string{"--tsa-roots", empty}, "no root certificate"},
		"roots that are none":        {[]string{"--tsa-url", "https://planted-word.example", "--tsa-roots", empty}, "no root certificate"},
		"roots that are not there":   {[]string{"--tsa-url", "https://planted-word.example", "--tsa-roots", empty + ".none"}, "no such file"},
		"a calendar that is none":    {[]string{"--ots-calendars", "planted-word"}, "--ots-calendars"},
		"headers for nothing":        {[]string{"--bitcoin-headers", "file:headers"}, "--ots-calendars"},
		"headers from nowhere":       {[]string{"--ots-calendars", "https://calendar.example", "--bitcoin-headers", "planted-word"}, "esplora+https"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := refuse(t, cli.ExitInconclusive, test.says, newSQLite(t).args(append([]string{"serve", "--listen", "127.0.0.1:0"}, test.flags...)...)...)
			if strings.Contains(r.err, "planted-word") {
				t.Errorf("the error repeats what may be a secret: %s", r.err)
			}
		})
	}
}

// A bundle of a receipt that was anchored verifies with the authority's roots, also if the log's
// key was revoked later, and fails with other roots. A key that was revoked within the accuracy of the
// authority's clock may have been revoked before.
func TestAnchoredBundle(t *testing.T) {
	t.Parallel()
	authority, roots := startAuthority(t, anchortest.Options{Accuracy: 30 * time.Minute})
	_, strangers := startAuthority(t, anchortest.Options{})
	s := migratedSQLite(t)
	server := start(t, append([]string{"--tsa-url", authority, "--tsa-roots", roots}, s.flags...)...)
	admin := server.admin(t)
	admin.call(t, http.MethodPatch, "/v1/organization", `{"evidence_export":"admins"}`, new(any))
	receipt := admin.seal(t).ReceiptID
	admin.status(t, http.MethodPost, "/v1/verification/v2/anchors", "")
	servicetest.Eventually(t, "the receipt is anchored", func() bool { return admin.anchors(t, "receipts/"+receipt) == "verified/not_anchored" })
	file := filepath.Join(t.TempDir(), "receipt.bundle")
	key := keyFile(t, admin.key)
	servicetest.Eventually(t, "the receipt is in a checkpoint", func() bool {
		return execute(t, "bundle", receipt, "--output", file, "--url", server.address, "--key-file", key).code == 0
	})
	anchored := time.Now()
	verify := []string{"verify", file, "--log-key", strings.TrimSpace(succeed(t, s.args("log", "vkey", "--org", "default")...))}
	with := func(more ...string) []string { return append(slices.Clone(verify), more...) }
	revoked := func(at time.Time) []string { return []string{"--log-key-revoked-at", at.UTC().Format(time.RFC3339)} }

	if out := succeed(t, with("--tsa-roots", roots)...); !strings.Contains(out, "✓ anchors") {
		t.Errorf("verify says\n%s", out)
	}
	refuse(t, cli.ExitFailed, "✗ anchors", with("--tsa-roots", strangers)...)
	after, before := revoked(anchored.Add(time.Hour)), revoked(anchored.Add(-time.Hour))
	if out := succeed(t, with(append(after, "--tsa-roots", roots)...)...); !strings.Contains(out, "revoked after the receipt was anchored") {
		t.Errorf("verify says\n%s", out)
	}
	refuse(t, cli.ExitFailed, "✗ checkpoint_signature", with(append(before, "--tsa-roots", roots)...)...)
	refuse(t, cli.ExitFailed, "✗ checkpoint_signature", with(append(revoked(anchored.Add(15*time.Minute)), "--tsa-roots", roots)...)...)
	refuse(t, cli.ExitInconclusive, "--tsa-roots", with(after...)...)
}
