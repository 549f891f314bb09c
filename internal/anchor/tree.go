package anchor

import (
	"iter"
	"slices"
)

// encode encodes the proof and parses the result, so that nothing is stored that cannot be read.
func (p *proof) encode() ([]byte, error) {
	data := appendNumber(slices.Clone(proofMagic), proofVersion)
	data = append(data, opSHA256)
	data = append(data, p.digest[:]...)
	data = p.root.append(data)
	if _, err := parseProof(data); err != nil {
		return nil, err
	}
	return data, nil
}

func (n *node) append(to []byte) []byte {
	left := len(n.attestations) + len(n.branches)
	item := func(tag byte) {
		if left--; left > 0 {
			to = append(to, tagMore)
		}
		to = append(to, tag)
	}
	for _, found := range n.attestations {
		item(tagAttestation)
		to = append(to, found.kind[:]...)
		to = appendBytes(to, found.payload)
	}
	for _, way := range n.branches {
		item(way.operation.tag)
		if takesArgument(way.operation.tag) {
			to = appendBytes(to, way.operation.argument)
		}
		to = way.next.append(to)
	}
	return to
}

// merge adds what another tree knows about the same message, and reports whether anything was new.
func (n *node) merge(other *node) bool {
	changed := false
	for _, found := range other.attestations {
		if !slices.ContainsFunc(n.attestations, found.equal) {
			n.attestations = append(n.attestations, found)
			changed = true
		}
	}
	for _, way := range other.branches {
		same := slices.IndexFunc(n.branches, func(own branch) bool { return own.operation.equal(way.operation) })
		if same < 0 {
			n.branches = append(n.branches, way)
			changed = true
			continue
		}
		changed = n.branches[same].next.merge(way.next) || changed
	}
	return changed
}

// all yields this node and every node below it whose message is known.
func (n *node) all() iter.Seq[*node] {
	return func(yield func(*node) bool) { n.walk(yield) }
}

func (n *node) walk(yield func(*node) bool) bool {
	if n.message == nil {
		return true
	}
	if !yield(n) {
		return false
	}
	for _, way := range n.branches {
		if !way.next.walk(yield) {
			return false
		}
	}
	return true
}

// blocks counts the Bitcoin attestations at the node and below it.
func (n *node) blocks() int {
	count := 0
	for below := range n.all() {
		for _, found := range below.attestations {
			if found.kind == kindBitcoin {
				count++
			}
		}
	}
	return count
}

// confirmed reports whether a block attests the node or one below it.
func (n *node) confirmed() bool { return n.blocks() > 0 }

// dropUnknown removes the branches that start with an unknown operation.
func (n *node) dropUnknown() {
	n.branches = slices.DeleteFunc(n.branches, func(way branch) bool { return way.next.message == nil })
	for _, way := range n.branches {
		way.next.dropUnknown()
	}
}

// prune removes everything that does not lead to a block.
func (n *node) prune() {
	n.attestations = slices.DeleteFunc(n.attestations, func(found attestation) bool { return found.kind != kindBitcoin })
	n.branches = slices.DeleteFunc(n.branches, func(way branch) bool { return !way.next.confirmed() })
	for _, way := range n.branches {
		way.next.prune()
	}
}
