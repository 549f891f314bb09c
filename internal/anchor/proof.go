package anchor

import (
	"bytes"
	"errors"
	"fmt"
)

// Limits on what is read. A confirmed answer of a calendar has about 100 items in 2 KiB. A proof
// has capacity for a promise and its confirmation from every calendar that can be configured, so
// that none can crowd out the others.
const (
	maxAnswerBytes = 4000
	maxAnswerItems = 256
	maxAnswerDepth = 120
	maxProofBytes  = 64 << 10
	maxProofItems  = 2*maxCalendars*maxAnswerItems + 2
	maxProofDepth  = 256
	// Verifying a proof needs the header of each block.
	maxAnswerBlocks = 2
	maxBlocks       = maxAnswerBlocks * maxCalendars
	proofVersion    = 1
)

const (
	tagAttestation byte = 0x00
	tagMore        byte = 0xff // another item follows at the same node
)

var proofMagic = []byte("\x00OpenTimestamps\x00\x00Proof\x00\xbf\x89\xe2\xe8\x84\xe8\x92\x94")

// proof is a detached OpenTimestamps file: a SHA-256 digest, and the tree of operations that lead
// from it to attestations.
type proof struct {
	digest [32]byte
	root   *node
}

// node is a message that is derived from the digest.
type node struct {
	message      []byte // nil below an unknown operation, where nothing attests the digest
	attestations []attestation
	branches     []branch
}

type branch struct {
	operation operation
	next      *node
}

func parseProof(data []byte) (*proof, error) {
	if len(data) > maxProofBytes {
		return nil, fmt.Errorf("the proof is longer than %d bytes", maxProofBytes)
	}
	rest, ok := bytes.CutPrefix(data, proofMagic)
	if !ok {
		return nil, errors.New("it does not begin as an OpenTimestamps proof")
	}
	input := reader{rest: rest, items: maxProofItems, depth: maxProofDepth}
	if version, err := input.number(proofVersion); err != nil || version != proofVersion {
		return nil, fmt.Errorf("the proof's format is not version %d", proofVersion)
	}
	if tag, err := input.byte(); err != nil || tag != opSHA256 {
		return nil, errors.New("the proof is not about a SHA-256 digest")
	}
	digest, err := input.take(32)
	if err != nil {
		return nil, err
	}
	root, err := input.node(digest)
	if err != nil {
		return nil, err
	}
	if len(input.rest) != 0 {
		return nil, errors.New("something follows the proof")
	}
	if root.blocks() > maxBlocks {
		return nil, fmt.Errorf("the proof names more than %d blocks", maxBlocks)
	}
	return &proof{digest: [32]byte(digest), root: root}, nil
}

// parseTimestamp parses a calendar's answer: the tree that starts at a message.
func parseTimestamp(message, data []byte) (*node, error) {
	input := reader{rest: data, items: maxAnswerItems, depth: maxAnswerDepth}
	root, err := input.node(message)
	if err == nil && len(input.rest) != 0 {
		return nil, errors.New("something follows the timestamp")
	}
	return root, err
}

func (r *reader) node(message []byte) (*node, error) {
	result := &node{message: message}
	for {
		tag, err := r.byte()
		if err != nil {
			return nil, err
		}
		more := tag == tagMore
		if more {
			if tag, err = r.byte(); err != nil {
				return nil, err
			}
		}
		if err := r.item(result, tag); err != nil {
			return nil, err
		}
		if !more {
			return result, nil
		}
	}
}

func (r *reader) item(at *node, tag byte) error {
	if r.items--; r.items < 0 {
		return errors.New("it has too many operations and attestations")
	}
	if tag == tagAttestation {
		found, err := r.attestation()
		if err == nil && at.message != nil {
			err = found.understand()
		}
		at.attestations = append(at.attestations, found)
		return err
	}
	if tag == tagMore {
		return errors.New("two separators follow each other")
	}
	step, err := r.operation(tag)
	if err != nil {
		return err
	}
	// Below an unknown operation the structure is parsed to find the end of the branch, but nothing
	// is computed.
	var message []byte
	if at.message != nil && step.known() {
		if message, err = step.apply(at.message); err != nil {
			return err
		}
	}
	if r.depth--; r.depth < 0 {
		return errors.New("too many operations follow each other")
	}
	next, err := r.node(message)
	r.depth++
	if err != nil {
		return err
	}
	at.merge(&node{branches: []branch{{step, next}}}) // the same operation twice leads to one message
	return nil
}

// operation reads the argument of the operations that have one. The format does not say where an
// unknown operation ends. All except append and prepend have no argument, so an unknown one is read
// without. If that is wrong, the rest is misread, but no misreading can attest the digest, because
// only known operations compute anything from it.
func (r *reader) operation(tag byte) (operation, error) {
	if !takesArgument(tag) {
		return operation{tag: tag}, nil
	}
	argument, err := r.bytes(maxMessage)
	if err == nil && len(argument) == 0 {
		err = errors.New("an operation lacks its argument")
	}
	return operation{tag, argument}, err
}

func (r *reader) attestation() (attestation, error) {
	kind, err := r.take(8)
	if err != nil {
		return attestation{}, err
	}
	payload, err := r.bytes(maxAttestation)
	if err != nil {
		return attestation{}, err
	}
	return attestation{kind: [8]byte(kind), payload: payload}, nil
}
