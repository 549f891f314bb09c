package evidence

import (
	"encoding/binary"

	"countersign/internal/ledger"
)

// record is a row as it is authenticated: its fields in a fixed order, each with its
// length, so that no two rows have the same bytes. A row may hold anything that its
// columns can, also what the service would never write.
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

// act is the number of the act that changed a record last. A row from before it was kept
// has none, and its bytes are those that it had then. It stands at the end, where it can be
// told from nothing.
func (r *record) act(number int64) {
	if number != 0 {
		r.int(number)
	}
}

// timeOrNone tells no moment from the first one.
func (r *record) timeOrNone(t *ledger.Time) {
	r.flag(t != nil)
	if t != nil {
		r.time(*t)
	}
}
