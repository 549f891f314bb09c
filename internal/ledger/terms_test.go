package ledger

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"testing"

	"github.com/google/uuid"
	"pgregory.net/rapid"
)

// Stored indexes hold terms, so a term never changes: it is the FNV-1a hash of the list, the kind, the
// organization and each text with its length.
func TestTermsOfStoredIndexes(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		org := OrgID{UUID: uuid.UUID(rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "organization"))}
		texts := rapid.SliceOfN(rapid.String(), 0, 3).Draw(t, "texts")
		h := fnv.New64a()
		write := func(part []byte) { _, _ = h.Write(part) } // never fails
		write([]byte{byte(ListReceipts), termWord})
		write(org.UUID[:])
		for _, text := range texts {
			write(binary.BigEndian.AppendUint32(nil, uint32(len(text))))
			write([]byte(text))
		}
		if got, want := ListReceipts.term(org, termWord, texts...), Term(h.Sum64()); got != want {
			t.Errorf("the term of %q is %d, want %d", texts, got, want)
		}
	})
}

// A receipt's label has at least four digits of the year and five of the sequence.
func TestReceiptNumbers(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		at := Time(rapid.Int64Range(int64(earliestTime), int64(latestTime)).Draw(t, "at"))
		sequence := rapid.OneOf(rapid.Int64Range(1, 200_000), rapid.Int64Min(1)).Draw(t, "sequence")
		number := ReceiptNumber(at, sequence)
		if want := fmt.Sprintf("CSN-%04d-%05d", at.Year(), sequence); number != want {
			t.Errorf("%s, want %s", number, want)
		}
		if back, ok := ParseReceiptNumber(number); !ok || back != sequence {
			t.Errorf("%s is read as %d, %t", number, back, ok)
		}
	})
}
