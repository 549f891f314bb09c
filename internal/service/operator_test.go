package service_test

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"countersign/internal/fault"
	"countersign/internal/keyring"
	"countersign/internal/ledger"
	"countersign/internal/service"
	"countersign/internal/servicetest"
	"countersign/internal/store"
	"countersign/internal/testdb"
	"countersign/internal/verify"
)

// A database accepts its own key ring and rotations of it, and refuses a foreign, relabelled or
// outdated one.
func TestAdoptKeysRefusesAForeignRing(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		ring, keyFile := servicetest.NewRing(t)
		s := serve(t, service.Config{Store: db.Open(t), Keys: ring})
		for range 2 {
			if err := s.Operator().AdoptKeys(t.Context(), ring); err != nil {
				t.Fatalf("its own ring: %v", err)
			}
		}
		foreign, _ := servicetest.NewRing(t)
		err := s.Operator().AdoptKeys(t.Context(), foreign)
		if err == nil || !strings.Contains(err.Error(), "restore the key file") {
			t.Errorf("a foreign ring: %v, want a refusal that says what to do", err)
		}
		impostor := relabelled{foreign, ring.CurrentKey()}
		if err := s.Operator().AdoptKeys(t.Context(), impostor); err == nil || !strings.Contains(err.Error(), "is not the one") {
			t.Errorf("another key under the same name: %v, want a refusal", err)
		}
		copied := filepath.Join(t.TempDir(), "keys.json")
		done(t, os.WriteFile(copied, must[[]byte](t)(os.ReadFile(keyFile)), 0o600))
		rotated, err := keyring.Rotate(keyFile, rand.Reader, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Operator().AdoptKeys(t.Context(), rotated); err != nil {
			t.Errorf("a rotated ring: %v", err)
		}
		if err := s.Operator().AdoptKeys(t.Context(), must[*keyring.Ring](t)(keyring.Open(copied))); err == nil {
			t.Error("a ring from before the rotation is taken: it lacks the newest key")
		}
	})
}

// relabelled is a ring that uses another ring's key id for its own key.
type relabelled struct {
	*keyring.Ring
	id string
}

func (r relabelled) IDs() []string { return []string{r.id} }

func (r relabelled) Fingerprint(string) ([32]byte, bool) { return r.Ring.Fingerprint(r.CurrentKey()) }

// When several replicas start on an empty database concurrently, one of them creates the first
// organization, its admin key and a sign-in link that works once.
//
//countersign:race
func TestBootstrapRace(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		ring, _ := servicetest.NewRing(t)
		var mu sync.Mutex
		var starts []*service.FirstStart
		var racers sync.WaitGroup
		for range 4 {
			s := serve(t, service.Config{Store: db.Open(t), Keys: ring})
			racers.Go(func() {
				started, err := s.Operator().Bootstrap(t.Context())
				if err != nil {
					t.Error(err)
				}
				mu.Lock()
				defer mu.Unlock()
				if started != nil {
					starts = append(starts, started)
				}
			})
		}
		racers.Wait()
		if len(starts) != 1 {
			t.Fatalf("%d replicas made the first organization, want one", len(starts))
		}
		s := serve(t, service.Config{Store: db.Open(t), Keys: ring})
		orgs := must[[]*ledger.Organization](t)(s.Operator().Organizations(t.Context()))
		if len(orgs) != 1 || orgs[0].Slug != "default" {
			t.Errorf("organizations %v, want default alone", orgs)
		}
		caller := servicetest.Authenticate(t, s, starts[0].Key)
		if caller.Role != ledger.RoleAdmin {
			t.Errorf("the first key is of role %s", caller.Role)
		}
		session, _, err := s.SignIn(t.Context(), starts[0].SignIn.Reveal())
		if err != nil {
			t.Fatal(err)
		}
		who := must[*service.Caller](t)(s.SessionCaller(t.Context(), session.Reveal()))
		if who.Key != caller.Key {
			t.Error("the sign-in link acts for another key")
		}
		if _, _, err := s.SignIn(t.Context(), starts[0].SignIn.Reveal()); codeOf(err) != fault.CodeUnauthenticated {
			t.Errorf("a used link: %v", err)
		}
		if err := s.SignOut(t.Context(), session.Reveal()); err != nil {
			t.Fatal(err)
		}
		if _, err := s.SessionCaller(t.Context(), session.Reveal()); err == nil {
			t.Error("a session outlives its end")
		}
		checkIntact(t, s, "default", 0)
	})
}

// stutteringStore fails as told when an organization or a sign-in link is created.
type stutteringStore struct {
	store.Store
	faults  []error // of the next creations, in turn
	commits []bool  // whether each of those stores the organization all the same
	links   error
}

func (s *stutteringStore) CreateOrganization(ctx context.Context, org *ledger.Organization, head *ledger.Head, with *store.Changes) error {
	if len(s.faults) == 0 {
		return s.Store.CreateOrganization(ctx, org, head, with)
	}
	fault, commit := s.faults[0], s.commits[0]
	s.faults, s.commits = s.faults[1:], s.commits[1:]
	if commit {
		if err := s.Store.CreateOrganization(ctx, org, head, with); err != nil {
			return err
		}
	}
	return fault
}

func (s *stutteringStore) CreateSignIn(ctx context.Context, link *store.SignIn) error {
	if s.links != nil {
		return s.links
	}
	return s.Store.CreateSignIn(ctx, link)
}

// The first key, which is shown once, is returned and works however the store stutters while the
// first organization is created, also if the answer to the commit is lost.
//
//countersign:race
func TestFirstStartOutlivesFaults(t *testing.T) {
	t.Parallel()
	type step struct {
		fault  error
		commit bool
	}
	kinds := []step{{store.ErrUnavailable, false}, {store.ErrOutcomeUnknown, false}, {store.ErrOutcomeUnknown, true}}
	runs := [][]step{nil}
	for _, first := range kinds {
		runs = append(runs, []step{first})
		for _, second := range kinds {
			runs = append(runs, []step{first, second})
		}
	}
	for _, links := range []error{nil, store.ErrUnavailable} {
		for _, run := range runs {
			t.Run(fmt.Sprint(run, links), func(t *testing.T) {
				t.Parallel()
				db := testdb.SQLite(t)
				ring, _ := servicetest.NewRing(t)
				stuttering := &stutteringStore{Store: db.Open(t), links: links}
				for _, s := range run {
					stuttering.faults, stuttering.commits = append(stuttering.faults, s.fault), append(stuttering.commits, s.commit)
				}
				s := serve(t, service.Config{Store: stuttering, Keys: ring})
				first, err := s.Operator().Bootstrap(t.Context())
				if err != nil || first == nil {
					t.Fatalf("the first start is %v, error %v", first, err)
				}
				if caller := servicetest.Authenticate(t, s, first.Key); caller.Role != ledger.RoleAdmin {
					t.Errorf("the first key is of role %s", caller.Role)
				}
				if made := first.SignIn.Reveal() != ""; made != (links == nil) {
					t.Errorf("a link was made: %t, error %v", made, links)
				}
				checkIntact(t, s, "default", 0)
			})
		}
	}
}

// A store that stays away is given up after some tries, and an organization that another server
// created meanwhile is not taken for the own one.
//
//countersign:race
func TestFirstStartGivesUp(t *testing.T) {
	t.Parallel()
	db := testdb.SQLite(t)
	ring, _ := servicetest.NewRing(t)
	away := slices.Repeat([]error{store.ErrUnavailable}, 100)
	stuttering := &stutteringStore{Store: db.Open(t), faults: away, commits: make([]bool, len(away))}
	s := serve(t, service.Config{Store: stuttering, Keys: ring})
	if first, err := s.Operator().Bootstrap(t.Context()); first != nil || codeOf(err) != fault.CodeUnavailable {
		t.Errorf("the first start is %v, error %v", first, err)
	}
	other := serve(t, service.Config{Store: db.Open(t), Keys: ring})
	stuttering.faults, stuttering.commits = []error{store.ErrOutcomeUnknown}, []bool{false}
	must[*service.FirstStart](t)(other.Operator().Bootstrap(t.Context()))
	if _, _, err := s.Operator().CreateOrganization(t.Context(), "default", ""); codeOf(err) != fault.CodeOrganizationExists {
		t.Errorf("creating it again: %v", err)
	}
}

// Receipts signed before a key rotation still verify after it, and new ones name the new key.
func TestReceiptsOutliveARotation(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		ring, keyFile := servicetest.NewRing(t)
		s := serve(t, service.Config{Store: db.Open(t), Keys: ring})
		who := newTenant(t, s, "acme")
		before := ring.CurrentKey()
		open := must[*service.ChainView](t)(s.OpenChain(t.Context(), who.agent, chainNamed(t, "across"), ""))
		must[*service.Recorded](t)(s.RecordEvent(t.Context(), who.agent, open.ID, step(t, "before", "")))
		sealOne(t, s, who, "old")
		if _, err := keyring.Rotate(keyFile, rand.Reader, time.Now()); err != nil {
			t.Fatal(err)
		}
		if err := ring.Reload(); err != nil {
			t.Fatal(err)
		}
		if ring.CurrentKey() == before {
			t.Fatal("nothing was rotated")
		}
		must[*service.Recorded](t)(s.RecordEvent(t.Context(), who.agent, open.ID, step(t, "after", "")))
		must[*service.Completed](t)(s.CompleteChain(t.Context(), who.agent, open.ID, &ledger.Completion{}))
		sealOne(t, s, who, "new")
		receipts := must[[]*ledger.StoredReceipt](t)(s.Receipts(t.Context(), who.member, 0, 10))
		keys := map[string]int{}
		for _, receipt := range receipts {
			check := must[*ledger.ReceiptCheck](t)(s.CheckReceipt(t.Context(), receipt.ID))
			if !check.Valid {
				t.Errorf("%s does not verify after the rotation", check.Number)
			}
			for _, id := range []string{before, ring.CurrentKey()} {
				if strings.Contains(string(receipt.Body), `"key_id":"`+id+`"`) {
					keys[id]++
				}
			}
		}
		if keys[before] != 1 || keys[ring.CurrentKey()] != 2 {
			t.Errorf("receipts by key: %v, want one of the old and two of the new", keys)
		}
		checkIntact(t, s, "acme", 3)
	})
}

func sealOne(t testing.TB, s *service.Service, who *tenant, name string) *service.Completed {
	t.Helper()
	chain := must[*service.ChainView](t)(s.OpenChain(t.Context(), who.agent, chainNamed(t, name), "open-"+name))
	must[*service.Recorded](t)(s.RecordEvent(t.Context(), who.agent, chain.ID, step(t, "one", "")))
	return must[*service.Completed](t)(s.CompleteChain(t.Context(), who.agent, chain.ID, &ledger.Completion{}))
}

// The operator is refused duplicate or bad slugs and unknown organizations, and revoking a key
// twice keeps the first time.
func TestOperatorOnOrganizationsAndKeys(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		s := serve(t, service.Config{Store: db.Open(t)})
		o := s.Operator()
		who := newTenant(t, s, "acme")
		_, _, err := o.CreateOrganization(t.Context(), "acme", "")
		checkCode(t, "a slug that is taken", err, fault.CodeOrganizationExists)
		_, _, err = o.CreateOrganization(t.Context(), "Not A Slug", "")
		checkCode(t, "a bad slug", err, fault.CodeInvalid)
		_, err = o.CreateKey(t.Context(), "nobody", &service.KeyRequest{Role: ledger.RoleAgent})
		checkCode(t, "a key for nobody", err, fault.CodeNotFound)
		_, err = o.Audit(t.Context(), "nobody", verify.AuditOptions{})
		checkCode(t, "an audit of nobody", err, fault.CodeNotFound)
		for i := range 5 {
			newKey(t, s, "acme", ledger.RoleAgent)
			if keys := must[[]*ledger.KeyRecord](t)(o.Keys(t.Context(), "acme")); len(keys) != 4+i {
				t.Errorf("%d keys, want %d", len(keys), 4+i)
			}
		}
		if _, err := o.SignInLink(t.Context(), "acme", who.member.Key); err != nil {
			t.Error(err)
		}
		revoked := must[*ledger.KeyRecord](t)(o.RevokeKey(t.Context(), "acme", who.member.Key))
		again := must[*ledger.KeyRecord](t)(o.RevokeKey(t.Context(), "acme", who.member.Key))
		if revoked.RevokedAt == nil || *again.RevokedAt != *revoked.RevokedAt {
			t.Error("revoking again moved the moment")
		}
		_, err = o.SignInLink(t.Context(), "acme", who.member.Key)
		checkCode(t, "a link for a revoked key", err, fault.CodeNotFound)
		if err := s.Ready(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// An audit reports its progress, what it counted and which checks it omitted.
func TestAuditSaysWhatItLookedAt(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		s := serve(t, service.Config{Store: db.Open(t)})
		who := newTenant(t, s, "acme")
		for i := range 3 {
			sealOne(t, s, who, fmt.Sprint("chain-", i))
		}
		var progress int64
		var mu sync.Mutex
		options := verify.AuditOptions{ReceiptsOnly: true, Progress: func(done, total int64) {
			mu.Lock()
			defer mu.Unlock()
			progress = max(progress, done)
			if total != 3 {
				t.Errorf("progress towards %d, want 3", total)
			}
		}}
		report := must[*verify.AuditReport](t)(s.Operator().Audit(t.Context(), "acme", options))
		if report.Status != verify.AuditIntact || report.Receipts != 3 || report.Events != 0 || progress != 3 {
			t.Errorf("report %+v at progress %d", report, progress)
		}
		for _, check := range []ledger.Check{ledger.CheckEventsDigest, ledger.CheckChain} {
			if !slices.Contains(report.NotChecked, string(check)) {
				t.Errorf("the report does not say that %s was left alone", check)
			}
		}
		report = must[*verify.AuditReport](t)(s.Operator().Audit(t.Context(), "acme", verify.AuditOptions{}))
		if report.Status != verify.AuditIntact || report.Receipts != 3 || report.Chains != 3 || report.Events != 3 || len(report.NotChecked) != 0 {
			t.Errorf("report %+v", report)
		}
	})
}
