package bundle

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// statuses are the results by name.
func statuses(v *Verdict) map[Check]Status {
	found := make(map[Check]Status)
	for _, check := range v.Checks {
		found[check.Name] = check.Status
	}
	return found
}

func at(seconds, nanoseconds int64) *time.Time {
	moment := time.Unix(seconds, nanoseconds)
	return &moment
}

// TestVerify promises what an untouched bundle gets from verifiers that believe more or
// less: each check is named, and only a pinned log key makes it verified.
func TestVerify(t *testing.T) {
	f := newLogFixture(t, "log", "log", 5)
	other := newLogFixture(t, "other", "other", 5)
	all := map[Check]Status{
		CheckReceiptHash: Pass, CheckEventsDigest: Pass, CheckPayloadHashes: Pass, CheckApprovalRecords: Pass, CheckApprovalSignatures: Pass,
		CheckInclusion: Pass, CheckCheckpointSignature: Pass, CheckWitnesses: Pass, CheckAnchors: NotChecked, CheckReceiptSignature: NotChecked,
	}
	with := func(changes map[Check]Status) map[Check]Status {
		want := make(map[Check]Status)
		for name, status := range all {
			want[name] = status
		}
		for name, status := range changes {
			want[name] = status
		}
		return want
	}
	judge := func(status Status) AnchorJudge {
		return func(string, [32]byte, []byte) Judgement {
			return Judgement{Status: status, Detail: "as told", By: time.Unix(cosignedAt, 0)}
		}
	}
	second := func(n int64) *time.Time { return at(cosignedAt+n, 0) }
	for name, test := range map[string]struct {
		bundle  *Bundle
		keys    Keys
		verdict string
		want    map[Check]Status
	}{
		"everything":       {f.bundles[2], Keys{Log: []string{f.logKey()}, Witnesses: f.witnessKeys(), Quorum: 2}, Verified, all},
		"with anchors":     {f.bundles[2], Keys{Log: []string{f.logKey()}, Witnesses: f.witnessKeys(), Anchors: judge(Pass)}, Verified, with(map[Check]Status{CheckAnchors: Pass})},
		"with bad anchors": {f.bundles[2], Keys{Log: []string{f.logKey()}, Witnesses: f.witnessKeys(), Anchors: judge(Fail)}, Failed, with(map[Check]Status{CheckAnchors: Fail})},
		"no keys": {f.bundles[0], Keys{}, Indeterminate, with(map[Check]Status{
			CheckCheckpointSignature: NotChecked, CheckApprovalSignatures: NotChecked, CheckWitnesses: NotChecked,
		})},
		"witnesses alone": {f.bundles[0], Keys{Witnesses: f.witnessKeys(), Quorum: 2}, Indeterminate, with(map[Check]Status{
			CheckCheckpointSignature: NotChecked, CheckApprovalSignatures: NotChecked,
		})},
		"quorum missed": {f.bundles[4], Keys{Log: []string{f.logKey()}, Witnesses: f.witnessKeys(), Quorum: 3}, Failed, with(map[Check]Status{CheckWitnesses: Fail})},
		"another log's key": {f.bundles[4], Keys{Log: []string{other.logKey()}}, Failed, with(map[Check]Status{
			CheckCheckpointSignature: Fail, CheckApprovalSignatures: Fail, CheckWitnesses: NotChecked,
		})},
		"both keys of a rotation": {f.bundles[1], Keys{Log: []string{other.logKey(), f.logKey()}, Witnesses: f.witnessKeys()}, Verified, all},
		"revoked, seen before":    {f.bundles[1], Keys{Log: []string{f.logKey()}, Witnesses: f.witnessKeys(), RevokedAt: second(1)}, Verified, with(map[Check]Status{CheckApprovalSignatures: NotChecked})},
		"revoked, not seen before": {
			f.bundles[1], Keys{Log: []string{f.logKey()}, Witnesses: f.witnessKeys(), RevokedAt: second(0)}, Failed,
			with(map[Check]Status{CheckCheckpointSignature: Fail, CheckApprovalSignatures: NotChecked}),
		},
		"revoked, perhaps not seen before": {
			f.bundles[1], Keys{Log: []string{f.logKey()}, Witnesses: f.witnessKeys(), RevokedAt: at(cosignedAt, 999_999_999)}, Failed,
			with(map[Check]Status{CheckCheckpointSignature: Fail, CheckApprovalSignatures: NotChecked}),
		},
		"revoked at the earliest time": {
			f.bundles[1], Keys{Log: []string{f.logKey()}, Witnesses: f.witnessKeys(), RevokedAt: new(time.Time)}, Failed,
			with(map[Check]Status{CheckCheckpointSignature: Fail, CheckApprovalSignatures: NotChecked}),
		},
		"revoked, anchored before": {
			f.bundles[2], Keys{Log: []string{f.logKey()}, RevokedAt: second(1), Anchors: judge(Pass)}, Verified,
			with(map[Check]Status{CheckApprovalSignatures: NotChecked, CheckWitnesses: NotChecked, CheckAnchors: Pass}),
		},
		"revoked, not anchored before": {
			f.bundles[2], Keys{Log: []string{f.logKey()}, RevokedAt: second(0), Anchors: judge(Pass)}, Failed,
			with(map[Check]Status{CheckCheckpointSignature: Fail, CheckApprovalSignatures: NotChecked, CheckWitnesses: NotChecked, CheckAnchors: Pass}),
		},
		"revoked, anchor not judged": {
			f.bundles[2], Keys{Log: []string{f.logKey()}, RevokedAt: second(1), Anchors: judge(NotChecked)}, Failed,
			with(map[Check]Status{CheckCheckpointSignature: Fail, CheckApprovalSignatures: NotChecked, CheckWitnesses: NotChecked}),
		},
		"revoked, only an approval anchored before": {
			approvalAnchored(f.bundles[2]), Keys{Log: []string{f.logKey()}, RevokedAt: second(1), Anchors: judge(Pass)}, Failed,
			with(map[Check]Status{CheckCheckpointSignature: Fail, CheckApprovalSignatures: NotChecked, CheckWitnesses: NotChecked, CheckAnchors: Pass}),
		},
		"a share": {share(f.bundles[3]), Keys{Log: []string{f.logKey()}, Witnesses: f.witnessKeys()}, Verified, with(map[Check]Status{
			CheckEventsDigest: NotChecked, CheckPayloadHashes: NotChecked, CheckApprovalRecords: NotChecked, CheckApprovalSignatures: NotChecked,
		})},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			verdict, err := mustTrust(t, test.keys).Verify(test.bundle.Encode())
			if err != nil {
				t.Fatal(err)
			}
			if verdict.Status != test.verdict {
				t.Errorf("verdict %s, want %s: %+v", verdict.Status, test.verdict, verdict.Checks)
			}
			if diff := cmp.Diff(test.want, statuses(verdict)); diff != "" {
				t.Errorf("checks (-want +got):\n%s", diff)
			}
		})
	}
}

// approvalAnchored is a bundle whose receipt has no anchor, but an approval has.
func approvalAnchored(b *Bundle) *Bundle {
	changed := *b
	changed.Anchors = slices.DeleteFunc(slices.Clone(b.Anchors), func(a Anchor) bool { return a.Subject == SubjectReceipt })
	return &changed
}

// TestAnchorReasons promises that an anchor which cannot be read and one of something else fail for
// these reasons.
func TestAnchorReasons(t *testing.T) {
	t.Parallel()
	f := newLogFixture(t, "log", "log", 1)
	for want, change := range map[string]func(*Anchor){
		"the tsa anchor of receipt: its proof is not base64":    func(a *Anchor) { a.Proof = "***" },
		"the tsa anchor of receipt: it is about something else": func(a *Anchor) { a.Digest = formatHash(nil) },
	} {
		b := *f.bundles[0]
		b.Anchors = []Anchor{{Digest: b.ReceiptHash, Method: "tsa", Proof: "AAAA", Subject: SubjectReceipt}}
		change(&b.Anchors[0])
		verdict, err := mustTrust(t, Keys{}).Verify(b.Encode())
		if err != nil {
			t.Fatal(err)
		}
		if got := verdict.Check(CheckAnchors); got.Status != Fail || got.Detail != want {
			t.Errorf("anchors: %+v, want %s", got, want)
		}
	}
}

// TestManyAnchors promises that the time for anchors grows with the file and not with its square:
// each anchor here is of the last of many approvals.
func TestManyAnchors(t *testing.T) {
	t.Parallel()
	const many = 50_000
	hash := formatHash(nil)
	b := &Bundle{Receipt: `{"approvals":[` + strings.Repeat("{},", many) + `{"approval_hash":"` + hash + `","approval_id":"a"}]}`}
	for range many {
		b.Anchors = append(b.Anchors, Anchor{Digest: hash, Subject: "a"})
	}
	began := time.Now()
	verdict, err := mustTrust(t, Keys{}).Verify(b.Encode())
	if err != nil {
		t.Fatal(err)
	}
	if got := verdict.Check(CheckAnchors); got.Status != NotChecked {
		t.Errorf("anchors: %+v", got)
	}
	if took := time.Since(began); took > 10*time.Second { // squared it takes minutes
		t.Errorf("%v for %d anchors", took, many)
	}
}

// TestTrust promises that keys which cannot do what they are given for are refused
// before anything is verified.
func TestTrust(t *testing.T) {
	f := newLogFixture(t, "log", "log", 1)
	for name, keys := range map[string]Keys{
		"no log key":              {Log: []string{"log"}},
		"a witness as log key":    {Log: f.witnessKeys()[:1]},
		"a witness twice":         {Witnesses: append(f.witnessKeys(), f.witnessKeys()[0])},
		"a quorum out of reach":   {Witnesses: f.witnessKeys(), Quorum: 4},
		"a negative quorum":       {Quorum: -1},
		"revoked and unwitnessed": {Log: []string{f.logKey()}, RevokedAt: at(1, 0)},
	} {
		if _, err := NewTrust(keys); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

// FuzzVerify promises that no file makes the verifier panic, and that none that differs from
// a good one in more than its date is verified.
func FuzzVerify(f *testing.F) {
	fixture := newLogFixture(f, "log", "log", 2)
	good := fixture.bundles[1].Encode()
	f.Add(good)
	f.Add(share(fixture.bundles[0]).Encode())
	trust := mustTrust(f, Keys{Log: []string{fixture.logKey()}})
	known := map[string]bool{fixture.receipts[0]: true, fixture.receipts[1]: true}
	f.Fuzz(func(t *testing.T, data []byte) {
		verdict, err := trust.Verify(data)
		if err != nil || verdict.Status != Verified {
			return
		}
		if b, err := Parse(data); err != nil || !known[b.Receipt] {
			t.Fatalf("verified a receipt that the log does not have: %s", data)
		}
	})
}
