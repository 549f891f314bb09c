// Package tlog is an organization's transparency log, as far as it is arithmetic: leaf
// hashes, checkpoints, tiles and proofs. The Merkle tree is that of RFC 6962 and comes
// from golang.org/x/mod/sumdb, and so do signed notes; the texts are those of C2SP
// tlog-checkpoint and tlog-tiles.
//
// The package is pure: hashes are read through functions that the caller gives, and what
// they return is held against a root that the caller knows.
package tlog

import (
	"encoding/hex"
	"errors"
	"fmt"
	"regexp"

	sumdb "golang.org/x/mod/sumdb/tlog"
)

// Hash is a SHA-256 in the tree.
type Hash = sumdb.Hash

// ErrInconsistent says that stored hashes do not lead to the root that they must lead to.
var ErrInconsistent = errors.New("stored hashes do not lead to the log's root")

// LeafHash is the leaf hash of a receipt's canonical bytes, its signature included.
func LeafHash(receipt []byte) Hash { return sumdb.RecordHash(receipt) }

// EmptyRoot is the root of a tree without leaves.
func EmptyRoot() Hash {
	root, _ := sumdb.TreeHash(0, nil) // it reads nothing
	return root
}

// maxInstance bounds the part of an origin that an operator chooses, in bytes.
const maxInstance = 128

// instanceForm is narrower than what a note allows as a key's name, so that an origin can
// stand in an address and in a shell without quotes.
var instanceForm = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._:/-]*[A-Za-z0-9])?$`)

// CheckInstanceName refuses what cannot begin an origin.
func CheckInstanceName(name string) error {
	if len(name) > maxInstance || !instanceForm.MatchString(name) {
		return fmt.Errorf("an instance name is at most %d letters, digits and the characters . _ : / - in between, such as countersign.example.com", maxInstance)
	}
	return nil
}

// LogID names a log: 128 random bits.
type LogID [16]byte

// String is the id as it stands in origins and addresses: 32 hexadecimal digits.
func (id LogID) String() string { return hex.EncodeToString(id[:]) }

// ParseLogID reads what String writes, and nothing else.
func ParseLogID(text string) (id LogID, ok bool) {
	if len(text) != hex.EncodedLen(len(id)) {
		return id, false
	}
	_, err := hex.Decode(id[:], []byte(text))
	return id, err == nil && id.String() == text
}

// Origin names a log in its checkpoints. It is fixed when the log begins.
func Origin(instance string, id LogID) string { return instance + "/" + id.String() }
