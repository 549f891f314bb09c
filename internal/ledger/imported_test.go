package ledger

import (
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"
	"pgregory.net/rapid"

	"countersign/internal/fault"
)

// elsewhere returns the key of another installation. Its seed is the hash of a sentence.
func elsewhere() ed25519.PrivateKey {
	seed := sha256.Sum256([]byte("a key for tests alone, of an installation that does not exist"))
	return ed25519.NewKeyFromSeed(seed[:])
}

// importLineOf returns a line of an import, signed with a key.
func importLineOf(record []byte, key ed25519.PrivateKey) string {
	encode := base64.StdEncoding.EncodeToString
	return `{"decision_record":` + string(record) + `,"signature":"` + encode(ed25519.Sign(key, record)) + `","public_key":"` +
		encode(key.Public().(ed25519.PublicKey)) + `"}`
}

// decidedElsewhere returns a decision of another installation.
func decidedElsewhere() *Approval {
	id := func(n byte) uuid.UUID { return uuid.UUID{0: n, 6: 0x40, 8: 0x80, 15: n} }
	decided := Time(1_700_000_060_000)
	return &Approval{
		ID: ApprovalID{id(1)}, Org: OrgID{id(2)}, Chain: ChainID{id(3)}, Event: EventID{id(4)}, RequestedBy: KeyID{id(5)},
		AgentName: "Übersetzer", ActionType: "tool_call", ActionName: "send_payment", PayloadSHA256: PayloadHash([]byte(`{}`)),
		Reason: `the amount is "large" <&>`, PolicyVersion: "v0+0123456789ab", RequestedAt: 1_700_000_000_000, DecidedAt: &decided,
		Status: ApprovalApproved, Reviewer: &Reviewer{Key: KeyID{id(6)}, Name: "rita"}, Comment: "日本語",
		Votes: []Vote{{Reviewer: Reviewer{Key: KeyID{id(7)}, Name: "paul"}, At: 1_700_000_030_000}},
	}
}

type importVectors struct {
	Description string         `json:"description"`
	Imported    []importVector `json:"imported"`
}

type importVector struct {
	Line           string `json:"line"`
	DecisionRecord string `json:"decision_record"`
	Hash           string `json:"hash"`
	SignatureHex   string `json:"signature_hex"`
	PublicKeyHex   string `json:"public_key_hex"`
	ApprovalID     string `json:"approval_id"`
	Status         string `json:"status"`
}

// The vector of an imported approval is what the code produces and accepts.
func TestImportVectors(t *testing.T) {
	t.Parallel()
	approval, key := decidedElsewhere(), elsewhere()
	record := approval.DecisionRecord()
	made := importVectors{
		Description: "A line of an import of approvals. decision_record is the canonical JSON of that member, which signature_hex signs with Ed25519 under " +
			"public_key_hex; hash is sha256: and the SHA-256 of it. The key is one for tests alone.",
		Imported: []importVector{{
			Line: importLineOf(record, key), DecisionRecord: string(record), Hash: FormatHash(approval.Hash()),
			SignatureHex: hex.EncodeToString(ed25519.Sign(key, record)), PublicKeyHex: hex.EncodeToString(key.Public().(ed25519.PublicKey)),
			ApprovalID: approval.ID.String(), Status: string(approval.Status),
		}},
	}
	stored := holdVectors(t, "imported-approvals.json", made)
	for _, vector := range stored.Imported {
		imported, err := ParseImported([]byte(vector.Line))
		if err != nil {
			t.Fatal(err)
		}
		if string(imported.Record) != vector.DecisionRecord || FormatHash(imported.Hash()) != vector.Hash || imported.ID.String() != vector.ApprovalID ||
			string(imported.Status) != vector.Status || hex.EncodeToString(imported.Public) != vector.PublicKeyHex {
			t.Errorf("read as %+v", imported)
		}
	}
}

// Every decision that the service can record is read back from its record unchanged. One that is
// open or cancelled is not.
func TestDecisionsAreReadBack(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		a := anyApproval().Draw(t, "approval")
		a.AgentName, a.ActionType, a.ActionName = "agent", "tool_call", "act"
		decided := Later(a.RequestedAt, orZero(a.DecidedAt))
		a.DecidedAt = &decided
		if a.Status == ApprovalApproved {
			a.Reviewer, a.DeniedBy = &Reviewer{Name: "rita"}, nil
		}
		if a.Reviewer != nil && a.Reviewer.Name == "" {
			a.Reviewer = nil
		}
		a.Votes = slices.DeleteFunc(a.Votes, func(v Vote) bool { return v.Reviewer.Name == "" })
		record := a.DecisionRecord()
		read, err := DecodeDecision(record)
		if a.Status.Open() || a.Status == ApprovalCancelled {
			if err == nil {
				t.Fatalf("an approval that is %s is read", a.Status)
			}
			return
		}
		if err != nil {
			t.Fatalf("%s: %s", record, saidBy(err))
		}
		if string(read.DecisionRecord()) != string(record) {
			t.Fatalf("%s is read as %s", record, read.DecisionRecord())
		}
	})
}

// A line is refused unless it is strict JSON with the three members, a record in the service's own
// form, and a valid signature.
func TestImportLinesAreRefused(t *testing.T) {
	t.Parallel()
	key := elsewhere()
	changed := func(change func(*Approval)) string {
		a := decidedElsewhere()
		change(a)
		return importLineOf(a.DecisionRecord(), key)
	}
	good := importLineOf(decidedElsewhere().DecisionRecord(), key)
	record := string(decidedElsewhere().DecisionRecord())
	other := ed25519.NewKeyFromSeed(make([]byte, 32))
	weak := base64.StdEncoding.EncodeToString(append([]byte{1}, make([]byte, 31)...))
	early := Time(1)
	cases := map[string]struct{ line, says string }{
		"nothing":               {``, "JSON"},
		"no JSON":               {`{`, "JSON"},
		"a list":                {`[]`, "must be an object"},
		"a member twice":        {strings.Replace(good, `"signature"`, `"public_key":"","signature"`, 1), "JSON"},
		"no members":            {`{}`, "/decision_record is required"},
		"another member":        {strings.Replace(good, `"signature"`, `"trusted":true,"signature"`, 1), "/trusted is not a known field"},
		"a record as a text":    {strings.Replace(good, record, `"{}"`, 1), "/decision_record must be an object"},
		"an empty record":       {strings.Replace(good, record, `{}`, 1), "/decision_record/agent_name is required"},
		"a word changed":        {strings.Replace(good, "rita", "rosa", 1), "the signature is not that"},
		"another status":        {strings.Replace(good, `"approved"`, `"denied"`, 1), "the signature is not that"},
		"a member more":         {strings.Replace(good, `"action_name"`, `"action":"","action_name"`, 1), "/decision_record/action is not a known field"},
		"a member less":         {strings.Replace(good, `"comment":"日本語",`, ``, 1), "not in the form"},
		"another key":           {strings.Replace(good, base64.StdEncoding.EncodeToString(key.Public().(ed25519.PublicKey)), base64.StdEncoding.EncodeToString(other.Public().(ed25519.PublicKey)), 1), "the signature is not that"},
		"a key of small order":  {strings.Replace(good, base64.StdEncoding.EncodeToString(key.Public().(ed25519.PublicKey)), weak, 1), "weak key"},
		"a short signature":     {strings.Replace(good, `"signature":"`, `"signature":"AAAA","x":"`, 1), "/signature is required: 64 bytes"},
		"no key":                {strings.Replace(good, `"public_key":"`, `"public_key":"","x":"`, 1), "/public_key is required: 32 bytes"},
		"pending":               {changed(func(a *Approval) { a.Status = ApprovalPending }), "/decision_record/status must be one of"},
		"cancelled":             {changed(func(a *Approval) { a.Status = ApprovalCancelled }), "/decision_record/status must be one of"},
		"not decided":           {changed(func(a *Approval) { a.DecidedAt = nil }), "not in the form"},
		"decided too early":     {changed(func(a *Approval) { a.DecidedAt = &early }), "before it was requested"},
		"nobody approved it":    {changed(func(a *Approval) { a.Reviewer = nil }), "names no reviewer"},
		"a nameless reviewer":   {changed(func(a *Approval) { a.Reviewer.Name = "" }), "has no name"},
		"approved and denied":   {changed(func(a *Approval) { a.DeniedBy = &PolicyDenial{PolicyVersion: "v", Reason: "r"} }), "names a rule that denied it"},
		"a name with a newline": {changed(func(a *Approval) { a.AgentName = "a\nb" }), "control characters"},
		"no agent":              {changed(func(a *Approval) { a.AgentName = "" }), "/decision_record/agent_name is required"},
		"a long reason":         {changed(func(a *Approval) { a.Reason = strings.Repeat("x", 2001) }), "at most 2000 characters"},
		"many votes":            {changed(func(a *Approval) { a.Votes = make([]Vote, 21) }), "at most 20 elements"},
		"no id":                 {changed(func(a *Approval) { a.ID = ApprovalID{} }), "not in the form"},
	}
	if _, err := ParseImported([]byte(good)); err != nil {
		t.Fatalf("a good line is refused: %v", err)
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := ParseImported([]byte(c.line))
			if err == nil || !strings.Contains(saidBy(err), c.says) {
				t.Errorf("the error is %v, want one with %q", saidBy(err), c.says)
			}
		})
	}
}

func orZero(t *Time) Time {
	if t == nil {
		return 0
	}
	return *t
}

// saidBy returns an error's text with its fields.
func saidBy(err error) string {
	if err == nil {
		return ""
	}
	said := err.Error()
	var own *fault.Error
	if errors.As(err, &own) {
		for _, field := range own.Fields {
			said += "\n" + field.Pointer + " " + field.Detail
		}
	}
	return said
}

// Whatever line is accepted contains what was signed, byte for byte, and by whom.
func FuzzParseImported(f *testing.F) {
	f.Add(importLineOf(decidedElsewhere().DecisionRecord(), elsewhere()))
	f.Add(`{"decision_record":{},"signature":"","public_key":""}`)
	f.Add(`[`)
	f.Fuzz(func(t *testing.T, line string) {
		imported, err := ParseImported([]byte(line))
		if err != nil {
			return
		}
		if string(imported.DecisionRecord()) != string(imported.Record) || !ed25519.Verify(imported.Public, imported.Record, imported.Signature) ||
			imported.ID == (ApprovalID{}) || imported.Status.Open() {
			t.Errorf("%q is taken for %+v", line, imported)
		}
	})
}
