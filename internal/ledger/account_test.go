package ledger

import (
	"slices"
	"testing"
	"time"
	"unicode"

	"countersign/internal/classify"
)

// A key is active until it is revoked or has expired, whichever comes first.
func TestAPIKeyStatus(t *testing.T) {
	t.Parallel()
	at := func(t Time) *Time { return &t }
	for name, test := range map[string]struct {
		key  KeyRecord
		want APIKeyStatus
	}{
		"plain":               {KeyRecord{}, APIKeyActive},
		"before its expiry":   {KeyRecord{ExpiresAt: at(101)}, APIKeyActive},
		"at its expiry":       {KeyRecord{ExpiresAt: at(100)}, APIKeyExpired},
		"after its expiry":    {KeyRecord{ExpiresAt: at(99)}, APIKeyExpired},
		"revoked":             {KeyRecord{RevokedAt: at(50)}, APIKeyRevoked},
		"revoked and expired": {KeyRecord{RevokedAt: at(50), ExpiresAt: at(60)}, APIKeyRevoked},
	} {
		if got := test.key.Status(100); got != test.want || test.key.Active(100) != (test.want == APIKeyActive) {
			t.Errorf("%s: the status is %s, want %s", name, got, test.want)
		}
	}
}

// A key that is bound to agents records for them and for no others.
func TestMayRecord(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		bound []string
		agent string
		want  bool
	}{
		{nil, "anyone", true},
		{[]string{}, "anyone", true},
		{[]string{"intern"}, "intern", true},
		{[]string{"intern", "clerk"}, "clerk", true},
		{[]string{"intern"}, "Intern", true},
		{[]string{"INTERN"}, "in\u200btern", true},
		{[]string{"in\u00adtern"}, "ｉｎｔｅｒｎ", true},
		{[]string{"Straße"}, "STRASSE", true},
		{[]string{"ﬁnance"}, "Finance", true},
		{[]string{"İ"}, "i\u0307", true},
		{[]string{"intern"}, "intern2", false},
		{[]string{"intern"}, "inter", false},
		{[]string{"intern"}, "", false},
		{[]string{"intern"}, "in-tern", false},
		{[]string{"intern"}, "іntern", false}, // a Cyrillic letter is another letter
	} {
		key := KeyRecord{Agents: test.bound}
		if got := key.MayRecord(test.agent); got != test.want {
			t.Errorf("bound to %q: MayRecord(%q) = %v, want %v", test.bound, test.agent, got, test.want)
		}
	}
}

// TestFoldAgentNameIsStable folds every character between two letters, twice.
func TestFoldAgentNameIsStable(t *testing.T) {
	t.Parallel()
	for r := rune(0); r <= unicode.MaxRune; r++ {
		if once := classify.FoldName("a" + string(r) + "b"); classify.FoldName(once) != once {
			t.Fatalf("U+%04X folds to %+q, and that to something else", r, once)
		}
	}
}

// Rotating keeps one earlier secret, and only until its overlap ends.
func TestRotateMovesTheSecret(t *testing.T) {
	t.Parallel()
	secret := func(seed byte) APIKey {
		parsed, err := ParseAPIKey(NewAPIKey([32]byte{seed}).Reveal())
		if err != nil {
			t.Fatal(err)
		}
		return parsed
	}
	first, second, third := secret(1), secret(2), secret(3)
	key := KeyRecord{Hash: first.Hash(), Hint: first.Hint(), Name: "ci", Agents: []string{"intern"}}
	key.Rotate(second, 1000, 60*time.Millisecond)
	if key.Hash != second.Hash() || key.Hint != second.Hint() || *key.Previous != (PreviousSecret{first.Hash(), 1060}) {
		t.Errorf("after one rotation: %+v", key)
	}
	key.Rotate(third, 1010, 0)
	if key.Hash != third.Hash() || *key.Previous != (PreviousSecret{second.Hash(), 1010}) {
		t.Errorf("after two rotations: %+v", key)
	}
	if key.Name != "ci" || !slices.Equal(key.Agents, []string{"intern"}) {
		t.Errorf("the rotation changed more than the secret: %+v", key)
	}
}

// The agents of a key are stored and read back unchanged.
func TestAgentsComeBack(t *testing.T) {
	t.Parallel()
	for _, names := range [][]string{nil, {"a"}, {"a\"b", "zürich", "<&>\u2028", "in\u200btern"}} {
		got, err := DecodeAgents(EncodeAgents(names))
		if err != nil || !slices.Equal(got, names) {
			t.Errorf("%q came back as %q, %v", names, got, err)
		}
	}
	if _, err := DecodeAgents([]byte("{}")); err == nil {
		t.Error("an object was read as a list")
	}
}
