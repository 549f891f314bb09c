package httpapi_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"countersign/internal/bundle"
	"countersign/internal/servicetest"
	"countersign/internal/testdb"
	"countersign/internal/tlog"
)

// trust is what somebody believes who has pinned the key of an organization's log.
func (s *stack) trust(t *testing.T, slug string) *bundle.Trust {
	t.Helper()
	origin, keys, err := s.Service.Operator().LogVerifierKeys(t.Context(), slug)
	if err != nil {
		t.Fatal(err)
	}
	vkey, err := tlog.VerifierKey(origin, keys[0].Public)
	if err != nil {
		t.Fatal(err)
	}
	trust, err := bundle.NewTrust(bundle.Keys{Log: []string{vkey}})
	if err != nil {
		t.Fatal(err)
	}
	return trust
}

// judged are the checks of a bundle that was downloaded, by what they came to.
func judged(t *testing.T, trust *bundle.Trust, got *answer) map[bundle.Status][]bundle.Check {
	t.Helper()
	got.expect(t, http.StatusOK)
	verdict, err := trust.Verify(got.body)
	if err != nil {
		t.Fatalf("%v\n%s", err, got.body)
	}
	if verdict.Status != bundle.Verified {
		t.Errorf("the verdict is %s: %+v", verdict.Status, verdict.Checks)
	}
	found := make(map[bundle.Status][]bundle.Check)
	for _, check := range verdict.Checks {
		found[check.Status] = append(found[check.Status], check.Name)
	}
	return found
}

// An admin downloads evidence that anyone can verify with the log's key alone, by the
// receipt's id and by its number, with payloads and without; and nobody does while the
// organization does not allow it.
//
//countersign:race
func TestBundles(t *testing.T) {
	t.Parallel()
	for _, database := range []func(testing.TB) *testdb.Database{testdb.SQLite, testdb.Postgres} {
		s := start(t, openDatabase(t, database(t)), setup{signing: true})
		chain := s.open(t, s.acme.agent, `{"name":"export"}`)
		s.record(t, s.acme.agent, chain, anAction)
		asked := s.ask(t, s.acme.agent, chain)
		s.post(t, s.acme.member, "/v1/approvals/"+asked+"/approve", `{"comment":"grün"}`).expect(t, http.StatusOK)
		id := *s.complete(t, s.acme.agent, chain, "").ReceiptID
		other := *s.seal(t, s.rival.agent, "theirs").ReceiptID
		s.logBase(t, "acme", 1)
		path := "/v1/receipts/" + id + "/bundle"

		s.get(t, s.acme.admin, path).refuse(t, http.StatusForbidden, "forbidden")
		s.patch(t, s.acme.admin, `{"evidence_export":"admins"}`).expect(t, http.StatusOK)
		s.get(t, s.acme.member, path).refuse(t, http.StatusForbidden, "forbidden")
		s.get(t, s.acme.admin, "/v1/receipts/"+other+"/bundle").refuse(t, http.StatusNotFound, "not_found")
		s.get(t, s.acme.admin, path+"?payloads=yes").refuse(t, http.StatusUnprocessableEntity, "invalid_request")

		trust := s.trust(t, "acme")
		whole := map[bundle.Status][]bundle.Check{
			bundle.Pass: {
				bundle.CheckReceiptHash, bundle.CheckEventsDigest, bundle.CheckPayloadHashes, bundle.CheckApprovalRecords,
				bundle.CheckApprovalSignatures, bundle.CheckInclusion, bundle.CheckCheckpointSignature,
			},
			bundle.NotChecked: {bundle.CheckWitnesses, bundle.CheckAnchors, bundle.CheckReceiptSignature},
		}
		for _, path := range []string{path + "?payloads=true", "/v1/receipts/CSN-" + s.year() + "-00001/bundle?payloads=true"} {
			got := s.get(t, s.acme.admin, path)
			if diff := cmp.Diff(whole, judged(t, trust, got)); diff != "" {
				t.Errorf("the checks (-want +got):\n%s", diff)
			}
			if got.header.Get("Content-Type") != bundle.MediaType || !strings.Contains(got.header.Get("Content-Disposition"), "attachment") {
				t.Errorf("a bundle is sent as %v", got.header)
			}
		}
		bare := s.get(t, s.acme.admin, path)
		if found := judged(t, trust, bare); found[bundle.NotChecked][0] != bundle.CheckPayloadHashes {
			t.Errorf("without payloads the checks are %v", found)
		}
		bare.without(t, "planted-note", "planted-query")
	}
}

// A share serves a receipt with its proof and nothing of its events, to everyone who has its
// link, until it is revoked or the organization lets no evidence out any more. It opens no
// page of a token, and a token no share.
//
//countersign:race
func TestShares(t *testing.T) {
	t.Parallel()
	s := start(t, openDatabase(t, testdb.SQLite(t)), setup{signing: true})
	sealed := s.seal(t, s.acme.agent, "planted-name")
	s.logBase(t, "acme", 1)
	body := `{"receipt_id":"` + *sealed.ReceiptID + `"}`
	s.post(t, s.acme.admin, "/v1/shares", body).refuse(t, http.StatusForbidden, "forbidden")
	s.patch(t, s.acme.admin, `{"evidence_export":"admins"}`).expect(t, http.StatusOK)
	type share struct {
		ID     string `json:"share_id"`
		Status string `json:"status"`
		Text   string `json:"share"`
		Path   string `json:"public_path"`
	}
	first := decode[share](t, s.post(t, s.acme.admin, "/v1/shares", body).expect(t, http.StatusCreated))
	second := decode[share](t, s.post(t, s.acme.admin, "/v1/shares", body).expect(t, http.StatusCreated))
	token := s.issue(t, s.acme.admin, "receipt", *sealed.ReceiptID)

	got := s.get(t, credential{}, first.Path)
	found := judged(t, s.trust(t, "acme"), got)
	want := []bundle.Check{bundle.CheckReceiptHash, bundle.CheckInclusion, bundle.CheckCheckpointSignature}
	if diff := cmp.Diff(want, found[bundle.Pass]); diff != "" {
		t.Errorf("the checks (-want +got):\n%s", diff)
	}
	if parsed, err := bundle.Parse(got.body); err != nil || parsed.Full || parsed.Receipt != string(sealed.Receipt) {
		t.Errorf("the share is %s, %v", got.body, err)
	}

	unknown := s.get(t, credential{}, "/public/shares/"+unknownToken()).refuse(t, http.StatusNotFound, "not_found").anonymous()
	for _, path := range []string{"/public/shares/" + token.Token, "/public/v2/verify/" + first.Text, "/public/shares/x"} {
		if s.get(t, credential{}, path).refuse(t, http.StatusNotFound, "not_found").anonymous() != unknown {
			t.Errorf("%s tells a wrong link from an unknown one", path)
		}
	}
	gone := s.browse(t, "/public/shares/"+unknownToken()).expect(t, http.StatusNotFound)
	if !strings.Contains(string(gone.body), "There is nothing to show here") || !strings.Contains(gone.header.Get("Content-Security-Policy"), "default-src 'none'") {
		t.Errorf("a browser is told %s", gone.body)
	}
	s.post(t, s.acme.admin, "/v1/public-verification-tokens/"+first.ID+"/revoke", "").refuse(t, http.StatusNotFound, "not_found")
	s.post(t, s.acme.admin, "/v1/shares/"+token.ID+"/revoke", "").refuse(t, http.StatusNotFound, "not_found")
	s.post(t, s.rival.admin, "/v1/shares/"+first.ID+"/revoke", "").refuse(t, http.StatusNotFound, "not_found")
	s.get(t, s.acme.admin, "/v1/public-verification-tokens").expect(t, http.StatusOK).without(t, first.ID, second.ID)

	revoked := decode[share](t, s.post(t, s.acme.admin, "/v1/shares/"+first.ID+"/revoke", `{"reason":"sent astray"}`).expect(t, http.StatusOK))
	if revoked.Status != "revoked" {
		t.Errorf("the share is %+v", revoked)
	}
	s.get(t, credential{}, first.Path).refuse(t, http.StatusNotFound, "not_found")
	s.get(t, credential{}, second.Path).expect(t, http.StatusOK)
	listed := decode[page[share]](t, s.get(t, s.acme.admin, "/v1/shares?limit=1").expect(t, http.StatusOK))
	if len(listed.Data) != 1 || listed.Data[0].ID != second.ID || listed.Next == nil {
		t.Errorf("the list is %+v", listed)
	}
	s.patch(t, s.acme.admin, `{"evidence_export":"off"}`).expect(t, http.StatusOK)
	s.get(t, credential{}, second.Path).refuse(t, http.StatusNotFound, "not_found")
}

// A share whose receipt was deleted from the database does not look like a link that is wrong or
// has ended: the service says that its evidence was changed, and records the finding.
//
//countersign:race
func TestShareOfADeletedReceipt(t *testing.T) {
	t.Parallel()
	for _, database := range []func(testing.TB) *testdb.Database{testdb.SQLite, testdb.Postgres} {
		db := database(t)
		s := start(t, openDatabase(t, db), setup{signing: true})
		s.patch(t, s.acme.admin, `{"evidence_export":"admins"}`).expect(t, http.StatusOK)
		body := `{"receipt_id":"` + *s.seal(t, s.acme.agent, "gone").ReceiptID + `"}`
		shared := decode[struct {
			Path string `json:"public_path"`
		}](t, s.post(t, s.acme.admin, "/v1/shares", body).expect(t, http.StatusCreated))
		s.logBase(t, "acme", 1)
		s.get(t, credential{}, shared.Path).expect(t, http.StatusOK)
		if _, err := db.Direct(t).ExecContext(t.Context(), "DELETE FROM receipts"); err != nil {
			t.Fatal(err)
		}
		s.get(t, credential{}, shared.Path).refuse(t, http.StatusInternalServerError, "evidence_tampered")
		servicetest.Eventually(t, "the finding is recorded", func() bool {
			open, err := s.Service.OpenFindings(t.Context())
			return err == nil && open > 0
		})
	}
}

// Members find a receipt by its number; strangers do not, and neither does another
// organization.
func TestReceiptsByNumber(t *testing.T) {
	onEachStack(t, func(t *testing.T, s *stack) {
		id := *s.seal(t, s.acme.agent, "numbered").ReceiptID
		number := "CSN-" + s.year() + "-00001"
		for _, path := range []string{"/v1/receipts/" + number, "/v1/verification/v2/receipts/" + number} {
			if got := s.get(t, s.acme.member, path).expect(t, http.StatusOK); !strings.Contains(string(got.body), id) {
				t.Errorf("%s answers %s", path, got.body)
			}
			s.get(t, s.rival.member, path).refuse(t, http.StatusNotFound, "not_found")
		}
		for _, number := range []string{"CSN-1999-00001", "CSN-" + s.year() + "-1", "CSN-" + s.year() + "-00002", "CSN-" + s.year() + "-000001", "CSN-", "CSN-" + s.year() + "-99999999999999999999"} {
			s.get(t, s.acme.member, "/v1/receipts/"+number).refuse(t, http.StatusNotFound, "not_found")
		}
		s.get(t, credential{}, "/v1/receipts/"+number+"/verify").refuse(t, http.StatusNotFound, "not_found")
	})
}

// year is that of the service's clock, which stands in numbers.
func (s *stack) year() string { return s.Service.Now().String()[:4] }
