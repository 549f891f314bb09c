package bundle

import (
	"crypto/ed25519"
	"fmt"

	"golang.org/x/mod/sumdb/tlog"
)

// signedCase is something odd that the log itself, or a witness, has signed: no edit of a
// good bundle leads there. failed lists what it must fail; it is verified if that is empty.
type signedCase struct {
	name   string
	trust  string
	bundle *Bundle
	failed []Check
}

// odd is a small bundle of which a case changes some parts before it is signed.
type odd struct {
	number, chain, approvals, more string // parts of the receipt
	total                          string
	index, size                    int64
	time                           uint64 // of both witnesses
	bodies, records                []string
	keys                           string // the third line of the registry
	anchors                        []Anchor
}

// sign makes the bundle, with a proof that leads to a root, whatever the size.
func (f *logFixture) signOdd(o odd) *Bundle {
	b := &Bundle{Full: true, GeneratedAt: testTime, Anchors: o.anchors}
	digest := hashOf(nil)
	for _, body := range o.bodies {
		digest = hashOf(append(digest, body...))
		b.Entries = append(b.Entries, Entry{Body: body})
	}
	b.Receipt = fmt.Sprintf(`{"approvals":%s,"chain_id":%s,"events_digest":"sha256:%x","format":"countersign-receipt-v2","receipt_number":%s,"total_actions":%s%s}`,
		o.approvals, o.chain, digest, `"`+o.number+`"`, o.total, o.more)
	b.ReceiptHash = formatHash([]byte(b.Receipt))
	for _, record := range o.records {
		b.Approvals = append(b.Approvals, Approval{KeyID: "k", Record: record, Signature: encode(ed25519.Sign(f.approver, []byte(record)))})
	}
	b.SigningKeys = f.sign(registryHeader + "\n" + f.origin + "\n" + o.keys + "\n")
	proof := Proof{Index: o.index}
	root := proof.fill(o.size, tlog.RecordHash([]byte(b.Receipt)))
	text := fmt.Sprintf("%s\n%d\n%s\n", f.origin, o.size, root)
	proof.Checkpoint = f.sign(text)
	for i := range 2 {
		proof.Checkpoint += f.cosignAt(text, i, o.time)
	}
	b.LogProof = proof.String()
	return b
}

// fill gives a proof as many hashes as the tree needs, and returns the root that they lead
// to: RFC 9162, section 2.1.3.2.
func (p *Proof) fill(size int64, node tlog.Hash) tlog.Hash {
	at, last := p.Index, size-1
	for last > 0 {
		other := tlog.Hash(hashOf([]byte{byte(len(p.Hashes))}))
		p.Hashes = append(p.Hashes, other)
		if at%2 == 1 || at == last {
			node = tlog.NodeHash(other, node)
			for at%2 == 0 && at != 0 {
				at, last = at/2, last/2
			}
		} else {
			node = tlog.NodeHash(node, other)
		}
		at, last = at/2, last/2
	}
	return node
}

// signedCases are what verifiers that were written from the document once differed on.
func (f *logFixture) signedCases() []signedCase {
	var cases []signedCase
	add := func(name, trust string, failed []Check, change func(*odd)) {
		o := odd{
			number: "CSN-2026-00001", chain: `"c"`, approvals: "[]", total: "0", size: 1, time: cosignedAt,
			keys: `{"keys":[` + f.oddKey("k", "") + `],"signed_at":"x"}`,
		}
		change(&o)
		cases = append(cases, signedCase{name, trust, f.signOdd(o), failed})
	}
	none := []Check(nil)
	add("nothing odd", "all", none, func(*odd) {})

	for _, size := range []int64{1 << 62, 1<<62 + 1, 1<<63 - 1} {
		failed := []Check{CheckApprovalSignatures, CheckInclusion, CheckCheckpointSignature, CheckWitnesses}
		if size == 1<<62 {
			failed = none
		}
		add(fmt.Sprint("a tree of ", size), "all", failed, func(o *odd) { o.size = size })
	}
	add("a number of 19 digits", "all", none, func(o *odd) {
		o.number, o.index, o.size = "CSN-2026-1000000000000000000", 999_999_999_999_999_999, 1<<62
	})
	for _, number := range []string{"CSN-2026-000001", "CSN-2026-1", "CSN-2026-+0001", "CSN-2026-0000１", ""} {
		add(fmt.Sprintf("the number %q", number), "all", []Check{CheckReceiptHash}, func(o *odd) { o.number = number })
	}

	for _, at := range []uint64{maxTime, maxTime + 1, 1 << 62, 1 << 63, 1<<64 - 1} {
		failed := []Check{CheckWitnesses}
		if at == maxTime {
			failed = none
		}
		add(fmt.Sprint("cosigned at ", at), "all", failed, func(o *odd) { o.time = at })
		add(fmt.Sprint("cosigned at ", at, ", key revoked"), "revoked", append([]Check{CheckCheckpointSignature}, failed...), func(o *odd) { o.time = at })
	}
	return cases
}

// oddKey is a key of the registry, with members behind those that a verifier needs.
func (f *logFixture) oddKey(id, more string) string {
	return `{"key_id":"` + id + `","public_key":"` + encode(f.approver.Public().(ed25519.PublicKey)) + `"` + more + `}`
}

// addSigned adds the cases that a log or a witness has signed, each under one trust.
func (v *vectors) addSigned(f *logFixture) {
	for _, c := range f.signedCases() {
		name := "signed: " + c.name
		v.Bases[name] = string(c.bundle.Encode())
		if c.failed == nil {
			c.failed = []Check{}
		}
		v.Cases = append(v.Cases, bundleCase{Name: name, Base: name, Trust: c.trust, wanted: c.failed})
	}
}
