package anchor

import (
	"bytes"
	"crypto/sha1" //nolint:gosec // an operation of the format, used in proofs of others
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/crypto/ripemd160" //nolint:gosec,staticcheck // an operation of the format, used in proofs of others
)

const maxMessage = 4096 // bytes, for an argument and a result

// Tags of the supported operations of the format.
const (
	opSHA1      byte = 0x02
	opRIPEMD160 byte = 0x03
	opSHA256    byte = 0x08
	opAppend    byte = 0xf0
	opPrepend   byte = 0xf1
	opReverse   byte = 0xf2
	opHexlify   byte = 0xf3
)

// operation turns the message at one node of a proof into that of the next.
type operation struct {
	tag      byte
	argument []byte // only for opAppend and opPrepend
}

func (o operation) equal(other operation) bool {
	return o.tag == other.tag && bytes.Equal(o.argument, other.argument)
}

// known reports whether compute supports the operation.
func (o operation) known() bool {
	switch o.tag {
	case opSHA1, opRIPEMD160, opSHA256, opAppend, opPrepend, opReverse, opHexlify:
		return true
	}
	return false
}

func takesArgument(tag byte) bool { return tag == opAppend || tag == opPrepend }

func (o operation) apply(message []byte) ([]byte, error) {
	result, err := o.compute(message)
	if err == nil && len(result) > maxMessage {
		return nil, errors.New("an operation's result is too long")
	}
	return result, err
}

func (o operation) compute(message []byte) ([]byte, error) {
	switch o.tag {
	case opSHA1:
		sum := sha1.Sum(message) //nolint:gosec // see the import
		return sum[:], nil
	case opRIPEMD160:
		hash := ripemd160.New()    //nolint:gosec // see the import
		_, _ = hash.Write(message) // a hash never fails
		return hash.Sum(nil), nil
	case opSHA256:
		sum := sha256.Sum256(message)
		return sum[:], nil
	case opAppend:
		return slices.Concat(message, o.argument), nil
	case opPrepend:
		return slices.Concat(o.argument, message), nil
	case opReverse:
		result := slices.Clone(message)
		slices.Reverse(result)
		return result, nil
	case opHexlify:
		return hex.AppendEncode(nil, message), nil
	}
	return nil, fmt.Errorf("operation 0x%02x is not supported", o.tag)
}
