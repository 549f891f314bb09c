package ledger

import (
	"bytes"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/gowebpki/jcs"
	"pgregory.net/rapid"

	"countersign/internal/canon"
)

// checkCanonical compares a record's own encoder with the general one and with another
// implementation of RFC 8785.
func checkCanonical(t *rapid.T, out []byte) {
	t.Helper()
	parsed, err := canon.Parse(out)
	if err != nil {
		t.Fatalf("%s is refused: %v", out, err)
	}
	if general := parsed.Append(nil); !bytes.Equal(out, general) {
		t.Fatalf("written as\n%s, by the general writer as\n%s", out, general)
	}
	opinion, err := jcs.Transform(out)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(out, opinion) {
		t.Fatalf("written as\n%s, elsewhere as\n%s", out, opinion)
	}
}

var sameMoney = cmp.Comparer(func(a, b Money) bool { return a.Cmp(b) == 0 })

// derivedValues are not stored themselves; the bytes that they are derived from are.
var derivedValues = cmp.Options{
	cmpopts.IgnoreUnexported(Action{}),
	cmpopts.IgnoreFields(Chain{}, "Limits"),
}

func checkSame(t *rapid.T, want, got any, options ...cmp.Option) {
	t.Helper()
	if diff := cmp.Diff(want, got, append(options, sameMoney, derivedValues)...); diff != "" {
		t.Fatalf("not what was encoded (-want +got):\n%s", diff)
	}
}

// Any chain is encoded as canonical JSON and decoded to the same chain with the same
// hash.
func TestChainEncoding(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		chain := anyChain().Draw(t, "chain")
		body := chain.Encode()
		checkCanonical(t, body)
		decoded, err := DecodeChain(body)
		if err != nil {
			t.Fatal(err)
		}
		checkSame(t, chain, decoded, cmpopts.IgnoreUnexported(Chain{}))
		if chain.Hash() != decoded.Hash() {
			t.Fatal("a decoded chain has another hash")
		}
	})
}

// Any chain state is encoded as canonical JSON and decoded to the same state.
func TestChainStateEncoding(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		chain, state := anyChain().Draw(t, "chain"), anyState().Draw(t, "state")
		body, mac := state.Encode(keyRing, chain)
		checkCanonical(t, body)
		decoded, err := DecodeChainState(body, mac, keyRing, chain)
		if err != nil {
			t.Fatal(err)
		}
		checkSame(t, state, decoded)
	})
}

// Any event is encoded as canonical JSON with its payload's hash and decoded to the
// same event without the payload.
func TestEventEncoding(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		event := anyEvent().Draw(t, "event")
		body := event.Encode()
		checkCanonical(t, body)
		decoded, err := DecodeEvent(body)
		if err != nil {
			t.Fatal(err)
		}
		if decoded.PayloadSHA256 != PayloadHash(event.Action.Payload) {
			t.Fatal("the payload's hash is lost")
		}
		if decoded.RedactionsSHA256 == nil || *decoded.RedactionsSHA256 != RedactionsHash(event.Action.Redactions) {
			t.Fatal("the hash of the redactions is lost")
		}
		if !decoded.Repeats(&event.Action) {
			t.Fatal("the same action is not recognised")
		}
		want := *event
		want.Action.Payload, want.Action.Redactions = nil, nil // stored separately
		checkSame(t, want, decoded.Event)
	})
}

// Any reported outcome is encoded as canonical JSON and decoded to the same entry.
func TestEntryEncoding(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		report := anyReport().Draw(t, "report")
		body := report.Encode()
		checkCanonical(t, body)
		decoded, err := DecodeEntry(body)
		if err != nil {
			t.Fatal(err)
		}
		checkSame(t, report, decoded)
	})
}

// Any receipt is encoded as canonical JSON, with its signature or without one.
func TestReceiptEncoding(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		receipt := anyReceipt().Draw(t, "receipt")
		checkCanonical(t, receipt.encode())
		receipt.Signature = ""
		unsigned := receipt.encode()
		checkCanonical(t, unsigned)
		if bytes.Contains(unsigned, []byte(`,"signature":`)) && !bytes.Contains(receipt.Metadata, []byte(`"signature":`)) {
			t.Fatalf("a receipt without signature has one: %s", unsigned)
		}
		checkCanonical(t, appendSummary(nil, receipt.Events, receiptFormat1))
		checkCanonical(t, receipt.Metrics.AppendTo(nil))
	})
}

// Metrics are encoded as canonical JSON and decoded without loss.
func TestExactMetricsEncoding(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		metrics := anyMetrics().Draw(t, "metrics")
		body := metrics.appendExact(nil)
		checkCanonical(t, body)
		record := must(openRecord(append(append([]byte(`{"metrics":`), body...), '}')))
		decoded := record.exactMetrics()
		if !record.readable() {
			t.Fatal(record.Err())
		}
		checkSame(t, metrics, decoded)
	})
}

// Any head is encoded as canonical JSON and is authentic under the key that
// authenticated it.
func TestHeadEncoding(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		head := &Head{Org: OrgID{anyUUID().Draw(t, "org")}, Count: anyCount().Draw(t, "count"), Last: maybe(anyHash()).Draw(t, "last")}
		head.authenticate(keyRing)
		checkCanonical(t, head.encode())
		if !head.Authentic(keyRing) {
			t.Fatal("its own head is refused")
		}
	})
}

// Fail modes are encoded as canonical JSON.
func TestFailModesEncoding(t *testing.T) {
	t.Parallel()
	category := rapid.StringMatching(`[a-z0-9_]{1,64}`)
	rapid.Check(t, func(t *rapid.T) {
		settings := Settings{FailModes: rapid.MapOf(category, rapid.SampledFrom([]string{"allow", "deny"})).Draw(t, "modes")}
		checkCanonical(t, settings.CanonicalFailModes())
	})
}
