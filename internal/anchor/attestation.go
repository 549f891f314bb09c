package anchor

import (
	"bytes"
	"errors"
	"strings"
)

const (
	maxAttestation = 8192
	maxCalendarURI = 1000
	maxHeight      = 1<<31 - 1
)

// Kinds of attestations that this package supports.
var (
	kindPending = [8]byte{0x83, 0xdf, 0xe3, 0x0d, 0x2e, 0xf9, 0x0c, 0x8e}
	kindBitcoin = [8]byte{0x05, 0x88, 0x96, 0x0d, 0x73, 0xd7, 0x19, 0x01}
)

// attestation says where the message at its node was seen. An attestation of another kind is kept
// unchanged and ignored.
type attestation struct {
	kind    [8]byte
	payload []byte

	calendar string // for a pending one: the calendar that promised confirmation
	height   int    // for one in Bitcoin: the height of the block
}

func (a attestation) equal(other attestation) bool {
	return a.kind == other.kind && bytes.Equal(a.payload, other.payload)
}

// understand decodes the payload of the supported kinds.
func (a *attestation) understand() error {
	payload := reader{rest: a.payload}
	switch a.kind {
	case kindPending:
		calendar, err := payload.bytes(maxCalendarURI)
		if err != nil || len(payload.rest) != 0 || !isCalendarURI(calendar) {
			return errors.New("a pending attestation names no calendar")
		}
		a.calendar = string(calendar)
	case kindBitcoin:
		height, err := payload.number(maxHeight)
		if err != nil || len(payload.rest) != 0 {
			return errors.New("a Bitcoin attestation names no block")
		}
		a.height = int(height) //nolint:gosec // number refuses more than maxHeight
	}
	return nil
}

// isCalendarURI allows what the format allows: nothing that could become a query, a user name or a
// line break.
func isCalendarURI(text []byte) bool {
	const allowed = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._/:"
	return len(text) > 0 && strings.Trim(string(text), allowed) == ""
}
