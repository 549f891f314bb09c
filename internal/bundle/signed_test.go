package bundle

import (
	"crypto/ed25519"
	"crypto/sha512"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"math/big"
	"slices"
	"strings"

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
	add("a place beyond the tree", "all", []Check{CheckInclusion}, func(o *odd) { o.number, o.index = "CSN-2026-00002", 1 })
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

	for _, total := range []string{`{"toString":null}`, `"0"`, `null`, `[]`, `1`} {
		add("total_actions "+total, "all", []Check{CheckEventsDigest}, func(o *odd) { o.total = total })
	}
	add("an empty chain_id", "all", none, func(o *odd) {
		o.chain, o.bodies, o.total = `""`, []string{`{"chain_id":"","sequence":1}`}, "1"
	})
	for _, chain := range []string{"null", "1", `{"toString":null}`} {
		add("the chain_id "+chain, "all", []Check{CheckEventsDigest}, func(o *odd) {
			o.chain, o.bodies, o.total = chain, []string{`{"chain_id":` + chain + `,"sequence":1}`}, "1"
		})
	}
	for _, number := range []string{"0e99999999999999999999", "-0.0E-99999999999999999999", "1" + strings.Repeat("0", 30) + "e-30", "10e000000000000000000001"} {
		add("the number "+number, "all", none, func(o *odd) { o.more = `,"z":` + number })
	}
	for _, number := range []string{"1e-99999999999999999999", "1e99999999999999999999", "1." + strings.Repeat("0", 30) + "1", "9007199254740993"} {
		add("the number "+number, "all", []Check{CheckReceiptHash, CheckEventsDigest, CheckApprovalRecords}, func(o *odd) { o.more = `,"z":` + number })
	}

	const record = `{"approval_id":"a","status":"approved"}`
	hash := formatHash([]byte(record))
	names := func(hash string) string {
		return `{"approval_hash":"` + hash + `","approval_id":"a","status":"approved"}`
	}
	add("an approval", "all", none, func(o *odd) { o.approvals, o.records = "["+names(hash)+"]", []string{record} })
	for _, approvals := range []string{"null", "{}", `"x"`, "[1]", "[null]"} {
		add("approvals "+approvals, "all", []Check{CheckApprovalRecords}, func(o *odd) { o.approvals = approvals })
	}
	add("what is no object before an approval", "all", []Check{CheckApprovalRecords}, func(o *odd) {
		o.approvals, o.records = "[1,"+names(hash)+"]", []string{record}
	})
	for _, record := range []string{`"x"`, "[1]", "null", "{}", `{"approval_id":1,"status":2}`} {
		add("the record "+record, "all", []Check{CheckApprovalRecords}, func(o *odd) {
			o.approvals, o.records = `[{"approval_hash":"`+formatHash([]byte(record))+`"}]`, []string{record}
		})
	}

	anchored := func(name, approvals, digest, subject string, failed []Check) {
		add("an anchor "+name, "all", failed, func(o *odd) {
			o.approvals, o.records = approvals, []string{record}
			o.anchors = []Anchor{{Digest: digest, Method: "tsa", Subject: subject}}
		})
	}
	capitals, bare := "sha256:"+strings.ToUpper(hash[len("sha256:"):]), hash[len("sha256:"):]
	anchored("of an approval", "["+names(hash)+"]", hash, "a", none)
	anchored("in capitals", "["+names(hash)+"]", capitals, "a", []Check{CheckAnchors})
	anchored("of a hash in capitals", "["+names(capitals)+"]", hash, "a", []Check{CheckApprovalRecords, CheckAnchors})
	anchored("in capitals of a hash in capitals", "["+names(capitals)+"]", capitals, "a", []Check{CheckApprovalRecords, CheckAnchors})
	anchored("of a bare hash", "["+names(bare)+"]", hash, "a", []Check{CheckApprovalRecords, CheckAnchors})
	anchored("that is a bare hash", "["+names(bare)+"]", bare, "a", []Check{CheckApprovalRecords, CheckAnchors})
	anchored("of the second approval of an id", "["+names("")+","+names(hash)+"]", hash, "a", []Check{CheckApprovalRecords, CheckAnchors})
	anchored("of an approval without an id", `[{"approval_hash":"`+hash+`"}]`, hash, "", []Check{CheckApprovalRecords, CheckAnchors})
	anchored("beside what is no approval", "[1,"+names(hash)+"]", hash, "a", []Check{CheckApprovalRecords, CheckAnchors})

	keys := func(name, keys string, failed []Check) {
		add("a registry "+name, "all", failed, func(o *odd) {
			o.approvals, o.records, o.keys = "["+names(hash)+"]", []string{record}, keys
		})
	}
	unread := []Check{CheckApprovalSignatures}
	keys("with more members", `{"keys":[`+f.oddKey("k", `,"more":1`)+`],"more":{}}`, none)
	keys("in another spelling", `{ "signed_at":"x", "keys" : [`+f.oddKey("k", "")+`] }`, none)
	keys("with an empty id", `{"keys":[`+f.oddKey("k", "")+`,`+f.oddKey("", "")+`]}`, unread)
	keys("with an id twice", `{"keys":[`+f.oddKey("k", "")+`,`+f.oddKey("k", "")+`]}`, unread)
	keys("with what is no key", `{"keys":[`+f.oddKey("k", "")+`,1]}`, unread)
	keys("that is an array", `[`+f.oddKey("k", "")+`]`, unread)

	// The signature is one of every message by the key that is the neutral point.
	neutral := append([]byte{1}, make([]byte, ed25519.PublicKeySize-1)...)
	forged, _ := hex.DecodeString("edc876d6831fd2105d0b4389ca2e283166469289146e2ce06faefe98b22548df05" + strings.Repeat("0", 62))
	good := odd{
		number: "CSN-2026-00001", chain: `"c"`, approvals: "[" + names(hash) + "]", total: "0", size: 1, time: cosignedAt,
		records: []string{record}, keys: `{"keys":[` + f.oddKey("k", "") + `]}`,
	}
	weak := good
	weak.keys = `{"keys":[{"key_id":"k","public_key":"` + encode(neutral) + `"}]}`
	b := f.signOdd(weak)
	b.Approvals[0].Signature = encode(forged)
	cases = append(cases, signedCase{"an approval with a key of small order", "all", b, unread})
	b = f.signOdd(good)
	b.Approvals[0].Signature = encode(neutralSignature(f.approver, []byte(record)))
	cases = append(cases, signedCase{"an approval with a signature of small order", "all", b, unread})
	for i, key := range []ed25519.PrivateKey{f.log, f.witnesses[0]} {
		b := f.signOdd(good)
		text := fmt.Sprintf("%s\n1\n%s\n", f.origin, tlog.RecordHash([]byte(b.Receipt)))
		failed, message := CheckCheckpointSignature, []byte(text)
		if i > 0 {
			failed, message = CheckWitnesses, fmt.Appendf(nil, "cosignature/v1\ntime %d\n%s", good.time, text)
		}
		lines := strings.Split(b.LogProof, "\n")
		line := &lines[len(lines)-4+i]
		space := strings.LastIndexByte(*line, ' ') + 1
		signed, err := base64.StdEncoding.DecodeString((*line)[space:])
		if err != nil || !ed25519.Verify(key.Public().(ed25519.PublicKey), message, signed[len(signed)-ed25519.SignatureSize:]) {
			f.t.Fatalf("the line %q is not the key's", *line)
		}
		copy(signed[len(signed)-ed25519.SignatureSize:], neutralSignature(key, message))
		*line = (*line)[:space] + encode(signed)
		b.LogProof = strings.Join(lines, "\n")
		cases = append(cases, signedCase{fmt.Sprint("a signature of small order for ", failed), "all", b, []Check{failed}})
	}
	return cases
}

// neutralSignature signs with 0 in place of a random number: R is the neutral point. It gives the
// key away, but verifies.
func neutralSignature(key ed25519.PrivateKey, message []byte) []byte {
	order, _ := new(big.Int).SetString("7237005577332262213973186563042994240857116359379907606001950938285454250989", 10)
	number := func(data []byte) *big.Int { // of bytes, the lowest first
		data = slices.Clone(data)
		slices.Reverse(data)
		return new(big.Int).SetBytes(data)
	}
	expanded := sha512.Sum512(key.Seed())
	expanded[0] &= 248
	expanded[31] = expanded[31]&127 | 64
	signature := append([]byte{1}, make([]byte, ed25519.SignatureSize-1)...)
	challenge := sha512.Sum512(slices.Concat(signature[:32], key.Public().(ed25519.PublicKey), message))
	s := new(big.Int).Mul(number(challenge[:]), number(expanded[:32]))
	s.Mod(s, order).FillBytes(signature[32:])
	slices.Reverse(signature[32:])
	return signature
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
