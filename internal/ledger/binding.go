package ledger

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"hash"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"countersign/internal/canon"
	"countersign/internal/classify"
)

// A reviewer approves a payload from which secrets were removed and in which long texts were cut.
// Digests of the removed values bind the approval to the original action: with the raw values and
// the chain's binding key one can show that they are the same.

// maxRedactions bounds the digests of one event.
const maxRedactions = 2000

const truncated = "...[truncated]"

// Markers replace what a client or the service removed from a payload. Some replace a whole value,
// the others can also occur within a text. Canonical JSON does not escape them.
var (
	wholeMarkers = []string{"[CYCLE]", "[TOO DEEP]", "[OMITTED]"}
	allMarkers   = append([]string{classify.Redacted, truncated}, wholeMarkers...)
)

// isMarker reports whether a string of a payload says that something was removed.
func isMarker(text string) bool {
	return strings.Contains(text, classify.Redacted) || strings.HasSuffix(text, truncated) || slices.Contains(wholeMarkers, text)
}

// BindingKey returns the key for the digests of what the chain's client removes. A successor has
// the key of the first chain, which is the one that its client knows. ok is false for a chain that
// predates binding keys or whose master key is not on the ring.
func (c *Chain) BindingKey(keys Keys) (key [32]byte, ok bool) {
	if c.BindingKeyID == "" {
		return key, false
	}
	first := c.First()
	return keys.MAC(c.BindingKeyID, c.Org.UUID, PurposeBinding, first.UUID[:])
}

// redactions is what was removed from an action, as far as the service knows.
type redactions struct {
	sent map[string]string // the client's digests by pointer; "" for null
	own  []ownRedaction    // what the service itself removed from the payload
	raw  []byte            // canonical payload and metadata as sent, if the service removed anything
	// unbindable says that the client sent a null because it had no key.
	unbindable bool
}

// ownRedaction is a value that the service removed. It is kept as text: its parsed form would take
// many times the memory while the action waits.
type ownRedaction struct {
	pointer string
	raw     []byte // canonical; nil if something was already removed from it
}

// redact removes secrets from payload and metadata, and keeps what was removed until Bind.
func (a *Action) redact(f *canon.Fields, payload, metadata canon.Value) {
	sent := readRedactions(f, payload)
	var own, beside []classify.Redaction
	a.payload, own = classify.RedactListed(payload)
	a.metadata, beside = classify.RedactListed(metadata)
	if len(sent)+len(own)+len(beside) == 0 {
		return
	}
	r := &redactions{sent: sent}
	for _, digest := range sent {
		r.unbindable = r.unbindable || digest == ""
	}
	var raw []canon.Value
	if len(own)+len(beside) > 0 {
		raw = []canon.Value{payload, metadata}
	}
	if len(sent) > 0 {
		outer := make(map[string]bool, len(own))
		for i := range own {
			outer[own[i].Pointer] = true
		}
		inner := make(map[string]string)
		maps.DeleteFunc(sent, func(pointer, digest string) bool {
			if !leadsInto(pointer, outer) {
				return false
			}
			inner[pointer] = digest
			return true
		})
		if len(inner) > 0 { // no longer in the map, but they still distinguish actions
			raw = append(raw, digestsValue(inner))
		}
		// The client saw the original values before the service did.
		own = slices.DeleteFunc(own, func(o classify.Redaction) bool { _, ok := sent[o.Pointer]; return ok })
	}
	for _, taken := range own[:min(len(own), maxRedactions-len(sent))] {
		kept := ownRedaction{pointer: taken.Pointer}
		if !holdsMarker(taken.Raw) {
			kept.raw = taken.Raw.Append(nil)
		}
		r.own = append(r.own, kept)
	}
	if len(raw) > 0 {
		r.raw = canon.ArrayValue(raw...).Append(nil)
	}
	a.redactions = r
}

// leadsInto reports whether a pointer leads into a value that was removed as a whole.
func leadsInto(pointer string, outer map[string]bool) bool {
	for i := 1; i < len(pointer); i++ {
		if pointer[i] == '/' && outer[pointer[:i]] {
			return true
		}
	}
	return false
}

var digestPattern = regexp.MustCompile(`^hmac-sha256:[0-9a-f]{64}$`)

// readRedactions reads the digests of what the client removed from the payload.
func readRedactions(f *canon.Fields, payload canon.Value) map[string]string {
	nested := f.Nested("redactions")
	if nested == nil {
		return nil
	}
	if len(nested.Members()) > maxRedactions {
		f.Fault("redactions", "must have at most %d members", maxRedactions)
		return nil
	}
	digests := make(map[string]string)
	for _, member := range nested.Members() {
		digest, pointer := member.Value, member.Name
		marker, found := payload.At(pointer)
		switch {
		case !digest.IsNull() && !digestPattern.MatchString(digest.Str()):
			nested.Fault(pointer, `must be "hmac-sha256:" and 64 hexadecimal digits in lower case, or null`)
		case !found || !isMarker(marker.Str()):
			nested.Fault(pointer, "must point to a string of the payload that says that something was redacted or cut, such as %q", classify.Redacted)
		default:
			digests[pointer] = digest.Str()
		}
	}
	f.Join(nested)
	return digests
}

// Bind computes the digests of what the service itself removed, with the key of the action's chain.
// It must be called before the action is compared or recorded. It is idempotent.
func (a *Action) Bind(keys Keys, chain *Chain) {
	r := a.redactions
	if r == nil {
		return
	}
	digests := maps.Clone(r.sent)
	if key, ok := chain.BindingKey(keys); ok && len(r.raw) > 0 {
		if digests == nil {
			digests = make(map[string]string)
		}
		mac := hmac.New(sha256.New, key[:])
		for _, own := range r.own {
			digests[own.pointer] = ""
			if own.raw != nil {
				digests[own.pointer] = digestOf(mac, own.raw)
			}
		}
		a.SentHMAC = digestOf(mac, r.raw)
	}
	a.Redactions = encodeDigests(digests)
}

// holdsMarker reports whether something was removed from a value before the service removed the
// rest. A digest of the remainder would not bind the original value.
func holdsMarker(v canon.Value) (holds bool) {
	eachMarker(v, "", func(string) { holds = true })
	return holds
}

func digestOf(mac hash.Hash, canonical []byte) string {
	mac.Reset()
	mac.Write(canonical)
	return "hmac-sha256:" + hex.EncodeToString(mac.Sum(nil))
}

func encodeDigests(digests map[string]string) []byte {
	if len(digests) == 0 {
		return nil
	}
	return digestsValue(digests).Append(nil)
}

func digestsValue(digests map[string]string) canon.Value {
	members := make([]canon.Member, 0, len(digests))
	for pointer, digest := range digests {
		value := canon.NullValue()
		if digest != "" {
			value, _ = canon.StringValue(digest) // hexadecimal digits
		}
		members = append(members, canon.Member{Name: pointer, Value: value})
	}
	object, _ := canon.ObjectValue(members...) // cannot fail: the pointers are distinct and valid UTF-8
	return object
}

// unbindable reports whether a removed value has no digest because the client had no key. Nobody
// can approve such an action, because it is not known what would happen.
func (a *Action) unbindable() bool {
	return a.redactions != nil && a.redactions.unbindable
}

// RedactionsHash returns the hex SHA-256 of an event's canonical map of digests, or "" if there is
// none.
func RedactionsHash(redactions []byte) string {
	if redactions == nil {
		return ""
	}
	return PayloadHash(redactions)
}

// Unbound lists the places of a stored payload where something was removed that no digest binds to
// the event.
func Unbound(payload, redactions []byte) ([]string, error) {
	if !slices.ContainsFunc(allMarkers, func(marker string) bool { return bytes.Contains(payload, []byte(marker)) }) {
		return nil, nil
	}
	v, err := canon.Parse(payload)
	if err != nil {
		return nil, errUnreadableEvent
	}
	var digests canon.Value
	if redactions != nil {
		if digests, err = canon.Parse(redactions); err != nil {
			return nil, errUnreadableEvent
		}
	}
	var unbound []string
	eachMarker(v, "", func(pointer string) {
		if digest, _ := digests.Get(pointer); digest.IsNull() {
			unbound = append(unbound, pointer)
		}
	})
	return unbound, nil
}

func eachMarker(v canon.Value, pointer string, visit func(pointer string)) {
	switch v.Kind() {
	case canon.String:
		if isMarker(v.Str()) {
			visit(pointer)
		}
	case canon.Array:
		for i, item := range v.Items() {
			eachMarker(item, pointer+"/"+strconv.Itoa(i), visit)
		}
	case canon.Object:
		for _, member := range v.Members() {
			eachMarker(member.Value, pointer+"/"+canon.PointerToken(member.Name), visit)
		}
	}
}
