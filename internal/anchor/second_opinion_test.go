package anchor_test

import (
	"encoding/hex"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"countersign/internal/anchor"
)

// The other implementation is Debian's package, in Debian's own interpreter.
const otherPython = "/usr/bin/python3"

// readProof prints the content of a proof, and the proof as the other implementation would write
// it.
const readProof = `
import sys
from opentimestamps.core.notary import BitcoinBlockHeaderAttestation, PendingAttestation
from opentimestamps.core.serialize import BytesDeserializationContext, BytesSerializationContext
from opentimestamps.core.timestamp import DetachedTimestampFile

proof = DetachedTimestampFile.deserialize(BytesDeserializationContext(bytes.fromhex(sys.argv[1])))
print("digest", proof.file_digest.hex())
for message, attestation in proof.timestamp.all_attestations():
    if isinstance(attestation, PendingAttestation):
        print("pending", attestation.uri, message.hex())
    elif isinstance(attestation, BitcoinBlockHeaderAttestation):
        print("block", attestation.height, message.hex())
    else:
        print("unknown", message.hex())
written = BytesSerializationContext()
proof.serialize(written)
print("again", written.getbytes().hex())
`

// writeProof prints a proof of a digest, with a promise and a block on two branches, and the root
// of that block.
const writeProof = `
import sys
from opentimestamps.core.notary import BitcoinBlockHeaderAttestation, PendingAttestation
from opentimestamps.core.op import OpAppend, OpPrepend, OpSHA256
from opentimestamps.core.serialize import BytesSerializationContext
from opentimestamps.core.timestamp import DetachedTimestampFile, Timestamp

top = Timestamp(bytes.fromhex(sys.argv[1]))
submitted = top.ops.add(OpAppend(b"a nonce")).ops.add(OpSHA256())
promised = submitted.ops.add(OpPrepend(b"one calendar")).ops.add(OpSHA256())
promised.attestations.add(PendingAttestation(sys.argv[2]))
root = submitted.ops.add(OpAppend(b"another calendar")).ops.add(OpSHA256()).ops.add(OpSHA256())
root.attestations.add(BitcoinBlockHeaderAttestation(int(sys.argv[3])))
written = BytesSerializationContext()
DetachedTimestampFile(OpSHA256(), top).serialize(written)
print("proof", written.getbytes().hex())
print("root", root.msg.hex())
`

// secondOpinion runs a script and returns its lines by their first words.
func secondOpinion(t *testing.T, script string, arguments ...string) map[string][]string {
	t.Helper()
	command := exec.CommandContext(t.Context(), otherPython, append([]string{"-c", script}, arguments...)...)
	output, err := command.CombinedOutput()
	if err != nil {
		t.Fatalf("the other implementation: %v\n%s\n(scripts/install-packages installs python3-opentimestamps)", err, output)
	}
	said := make(map[string][]string)
	for line := range strings.Lines(string(output)) {
		kind, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		said[kind] = append(said[kind], rest)
	}
	for _, lines := range said {
		slices.Sort(lines)
	}
	return said
}

// fromHex reads the only line of a kind.
func fromHex(t *testing.T, lines []string) []byte {
	t.Helper()
	if len(lines) != 1 {
		t.Fatalf("%d lines: %q", len(lines), lines)
	}
	data, err := hex.DecodeString(lines[0])
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// Another implementation of OpenTimestamps reads our proofs correctly.
func TestAnotherImplementationReadsOurProofs(t *testing.T) {
	t.Parallel()
	first, second, blocks := startCalendar(t), startCalendar(t), newChain()
	calendars := newCalendars(t, 2, first.url, second.url)
	digest := digestOf("for another to read")
	proof, err := calendars.Stamp(t.Context(), digest, salt)
	if err != nil {
		t.Fatal(err)
	}
	promises := []string{
		fmt.Sprintf("%s %x", first.url, first.submitted[0]),
		fmt.Sprintf("%s %x", second.url, second.submitted[0]),
	}
	slices.Sort(promises)
	said := secondOpinion(t, readProof, hex.EncodeToString(proof))
	if diff := cmp.Diff([]string{hex.EncodeToString(digest[:])}, said["digest"]); diff != "" {
		t.Errorf("the digest (-ours +theirs):\n%s", diff)
	}
	if diff := cmp.Diff(promises, said["pending"]); diff != "" {
		t.Errorf("the promises (-ours +theirs):\n%s", diff)
	}
	expect(t, blocks, fromHex(t, said["again"]), digest, anchor.Verdict{Status: anchor.Pending})

	second.confirm(blocks, 7)
	said = secondOpinion(t, readProof, hex.EncodeToString(upgrade(t, calendars, proof)))
	header, err := blocks.Header(t.Context(), 7)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{fmt.Sprintf("7 %x", header[36:68])}, said["block"]); diff != "" {
		t.Errorf("the block (-ours +theirs):\n%s", diff)
	}
	expect(t, blocks, fromHex(t, said["again"]), digest, anchor.Verdict{Status: anchor.Verified, Height: 7, BlockTime: blocks.time(7)})
}

// Proofs of another implementation of OpenTimestamps verify here.
func TestWeReadTheProofsOfAnotherImplementation(t *testing.T) {
	t.Parallel()
	blocks := newChain()
	digest := digestOf("from another to us")
	said := secondOpinion(t, writeProof, hex.EncodeToString(digest[:]), "https://calendar.example", "9")
	proof := fromHex(t, said["proof"])
	blocks.mine([32]byte(fromHex(t, said["root"])), 9)
	expect(t, blocks, proof, digest, anchor.Verdict{Status: anchor.Verified, Height: 9, BlockTime: blocks.time(9)})
	blocks.mine(digestOf("another block"), 9)
	expect(t, blocks, proof, digest, anchor.Verdict{Status: anchor.Pending}) // only the promise remains
}
