package evidence

import (
	"encoding/binary"

	"countersign/internal/ledger"
)

// record is the authenticated encoding of a row: its fields in a fixed order, each with its length,
// so that no two rows have the same bytes. It can encode anything that the columns can hold,
// including values that the service would never write.
type record []byte

func (r *record) bytes(b []byte) {
	*r = binary.AppendUvarint(*r, uint64(len(b)))
	*r = append(*r, b...)
}

func (r *record) text(s string) {
	*r = binary.AppendUvarint(*r, uint64(len(s)))
	*r = append(*r, s...)
}

func (r *record) texts(list []string) {
	*r = binary.AppendUvarint(*r, uint64(len(list)))
	for _, text := range list {
		r.text(text)
	}
}

func (r *record) int(n int64) { *r = binary.BigEndian.AppendUint64(*r, uint64(n)) } //nolint:gosec // all 64 bits are kept

func (r *record) flag(set bool) {
	if set {
		*r = append(*r, 1)
		return
	}
	*r = append(*r, 0)
}

func (r *record) time(t ledger.Time) { r.int(int64(t)) }

// act appends the number of the act that last changed a record. Rows written before act numbers
// existed have none, and their encoding is unchanged. act must be the last field, so that its
// absence is unambiguous.
func (r *record) act(number int64) {
	if number != 0 {
		r.int(number)
	}
}

// timeOrNone distinguishes nil from time zero.
func (r *record) timeOrNone(t *ledger.Time) {
	r.flag(t != nil)
	if t != nil {
		r.time(*t)
	}
}
