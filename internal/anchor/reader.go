package anchor

import (
	"errors"
	"fmt"
)

var errCutOff = errors.New("it ends too early")

// reader parses a proof from the front, within limits, because a few bytes can demand much.
type reader struct {
	rest  []byte
	items int // remaining operations and attestations
	depth int // remaining depth of operations
}

func (r *reader) take(count uint64) ([]byte, error) {
	if count > uint64(len(r.rest)) {
		return nil, errCutOff
	}
	taken := r.rest[:count:count]
	r.rest = r.rest[count:]
	return taken, nil
}

func (r *reader) byte() (byte, error) {
	taken, err := r.take(1)
	if err != nil {
		return 0, err
	}
	return taken[0], nil
}

// number reads a varint: seven bits per byte, lowest first, in the shortest form.
func (r *reader) number(limit uint64) (uint64, error) {
	var value uint64
	for shift := 0; ; shift += 7 {
		next, err := r.byte()
		if err != nil {
			return 0, err
		}
		if shift > 28 || (next == 0 && shift > 0) {
			return 0, errors.New("a number in it is not in its shortest form or too large")
		}
		value |= uint64(next&0x7f) << shift
		if next&0x80 != 0 {
			continue
		}
		if value > limit {
			return 0, fmt.Errorf("a number in it is above %d", limit)
		}
		return value, nil
	}
}

// bytes reads a length and that many bytes.
func (r *reader) bytes(limit uint64) ([]byte, error) {
	count, err := r.number(limit)
	if err != nil {
		return nil, err
	}
	return r.take(count)
}

func appendNumber(to []byte, value uint64) []byte {
	for ; value >= 0x80; value >>= 7 {
		to = append(to, byte(value)|0x80)
	}
	return append(to, byte(value))
}

func appendBytes(to, data []byte) []byte {
	return append(appendNumber(to, uint64(len(data))), data...)
}
