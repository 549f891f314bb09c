package ledger

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/uuid"
	"pgregory.net/rapid"
)

const sampleID = "01234567-89ab-4cde-8f01-23456789abcd"

// An id is accepted only in its form of 36 characters with hyphens.
func TestParseIDTakesOneForm(t *testing.T) {
	t.Parallel()
	if id, err := ParseID(sampleID); err != nil || id.String() != sampleID {
		t.Errorf("ParseID(%s) = %v, %v", sampleID, id, err)
	}
	refused := map[string]string{
		"empty":            "",
		"no hyphens":       strings.ReplaceAll(sampleID, "-", ""),
		"braces":           "{" + sampleID + "}",
		"urn":              "urn:uuid:" + sampleID,
		"too short":        sampleID[:35],
		"too long":         sampleID + "0",
		"not hexadecimal":  strings.Replace(sampleID, "a", "g", 1),
		"hyphens moved":    "0123456-789ab-4cde-8f01-23456789abcd",
		"space":            " " + sampleID[1:],
		"letters of width": strings.Repeat("é", 18),
	}
	for name, text := range refused {
		if _, err := ParseID(text); !errors.Is(err, ErrMalformedID) {
			t.Errorf("%s: error %v, want ErrMalformedID", name, err)
		}
	}
}

// Any text that is accepted as an id is written back in lower case as the same text.
func FuzzParseID(f *testing.F) {
	for _, seed := range []string{"", sampleID, strings.ToUpper(sampleID), "{" + sampleID[1:], sampleID[:35] + "\x00", strings.Repeat("-", 36)} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		id, err := ParseID(text)
		if err != nil {
			if id != uuid.Nil {
				t.Fatal("a refused text gives an id")
			}
			return
		}
		if got := string(appendID(nil, id)); got != strings.ToLower(text) || got != id.String() {
			t.Fatalf("%q is written as %q", text, got)
		}
	})
}

// New ids are UUIDs of version 7 that carry their time, or of version 4.
func TestNewIDsCarryTheirVersion(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		now := anyTime().Draw(t, "now")
		timed := NewTimedID(now, [10]byte(rapid.SliceOfN(rapid.Byte(), 10, 10).Draw(t, "random")))
		if timed.Version() != 7 || timed.Variant() != uuid.RFC4122 {
			t.Fatalf("%s is no version 7 id", timed)
		}
		if seconds, nanos := timed.Time().UnixTime(); Time(seconds*1000+nanos/1e6) != now {
			t.Fatalf("%s does not carry %s", timed, now)
		}
		random := NewRandomID([16]byte(rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "bits")))
		if random.Version() != 4 || random.Variant() != uuid.RFC4122 {
			t.Fatalf("%s is no version 4 id", random)
		}
	})
}

// The earlier of two timed ids sorts first as text, whatever their random parts are.
func TestTimedIDsSortByTime(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		early, late := anyTime().Draw(t, "a"), anyTime().Draw(t, "b")
		if early == late {
			return
		}
		if early > late {
			early, late = late, early
		}
		first, second := NewTimedID(early, [10]byte{0xff, 0xff}), NewTimedID(late, [10]byte{})
		if first.String() >= second.String() {
			t.Fatalf("%s of %s does not precede %s of %s", first, early, second, late)
		}
	})
}

// The id of an event is a UUID of version 7 that carries its sequence number.
func TestEventIDCarriesItsSequence(t *testing.T) {
	t.Parallel()
	for _, sequence := range []int64{1, 2, 255, 65_536, MaxEventsCeiling} {
		id := NewEventID(1_700_000_000_000, [10]byte{9, 9, 9, 9, 9, 9, 9, 9, 9, 9}, sequence)
		if id.Sequence() != sequence {
			t.Errorf("the id of event %d says %d", sequence, id.Sequence())
		}
		if id.Version() != 7 || id.Variant() != uuid.RFC4122 {
			t.Errorf("%s is no version 7 id", id)
		}
	}
}
