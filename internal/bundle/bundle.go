// Package bundle writes and verifies evidence bundles: files that prove a receipt to
// whoever holds them, offline and without trust in the service that made them.
// docs/bundles.md describes the format and the checks.
//
// The package is pure. It knows nothing of how the service stores things, so that a
// verifier shares no code with what it verifies beyond the reader of JSON.
package bundle

import (
	"bytes"
	"errors"
	"fmt"

	"countersign/internal/canon"
)

// Format names the layout of a bundle.
const Format = "countersign-bundle-v1"

// MediaType is what a bundle is served as.
const MediaType = "application/vnd.countersign.bundle+json"

// MaxSize bounds a bundle, in bytes.
const MaxSize = 64 << 20

// Bundle is one receipt with its evidence. Bodies, payloads and records are canonical
// bytes as they were hashed or signed.
type Bundle struct {
	GeneratedAt string
	Receipt     string
	ReceiptHash string
	LogProof    string
	Anchors     []Anchor

	// Full says that the members below are included; a share has none of them.
	Full        bool
	Entries     []Entry
	Approvals   []Approval
	SigningKeys string
}

// Entry is an event, or something that was recorded about one.
type Entry struct {
	Body       string
	Payload    *string // nil where it was erased or is not included, and for what is not an event
	Redactions *string
}

// Approval is a decision record with its signature.
type Approval struct {
	KeyID     string // "" without a signature
	Record    string
	Signature string // base64, "" for none
}

// Anchor is a proof of time.
type Anchor struct {
	Digest  string
	Method  string
	Proof   string // base64
	Subject string // SubjectReceipt, or an approval's id
}

// SubjectReceipt marks an anchor of the receipt itself.
const SubjectReceipt = "receipt"

// Encode writes the bundle in its one form.
func (b *Bundle) Encode() []byte {
	w := canon.BeginObject(make([]byte, 0, 4096+2*len(b.Receipt)))
	w.Value(appendList(w.Name("anchors"), b.Anchors, func(w *canon.ObjectWriter, a *Anchor) {
		w.String("digest", a.Digest)
		w.String("method", a.Method)
		w.String("proof", a.Proof)
		w.String("subject", a.Subject)
	}))
	if b.Full {
		w.Value(appendList(w.Name("approvals"), b.Approvals, func(w *canon.ObjectWriter, a *Approval) {
			w.StringOrNull("key_id", a.KeyID)
			w.String("record", a.Record)
			w.StringOrNull("signature", a.Signature)
		}))
		w.Value(appendList(w.Name("entries"), b.Entries, func(w *canon.ObjectWriter, e *Entry) {
			w.String("body", e.Body)
			writeOptional(w, "payload", e.Payload)
			writeOptional(w, "redactions", e.Redactions)
		}))
	} else {
		w.Null("approvals")
		w.Null("entries")
	}
	w.String("format", Format)
	w.String("generated_at", b.GeneratedAt)
	w.String("log_proof", b.LogProof)
	w.String("receipt", b.Receipt)
	w.String("receipt_hash", b.ReceiptHash)
	w.StringOrNull("signing_keys", b.SigningKeys)
	return w.End()
}

func appendList[T any](dst []byte, items []T, write func(*canon.ObjectWriter, *T)) []byte {
	dst = append(dst, '[')
	for i := range items {
		if i > 0 {
			dst = append(dst, ',')
		}
		w := canon.BeginObject(dst)
		write(&w, &items[i])
		dst = w.End()
	}
	return append(dst, ']')
}

func writeOptional(w *canon.ObjectWriter, name string, value *string) {
	if value == nil {
		w.Null(name)
		return
	}
	w.String(name, *value)
}

// errNotCanonical says that a file was edited, or written by another program.
var errNotCanonical = errors.New("the file is not in the form that the service wrote: it was reformatted or edited; get it again")

// Parse reads what Encode wrote, with or without a line break behind it, and refuses
// every other spelling: a file must not have two readings.
func Parse(data []byte) (*Bundle, error) {
	if len(data) > MaxSize {
		return nil, fmt.Errorf("the file has %d bytes, a bundle has at most %d", len(data), MaxSize)
	}
	data = bytes.TrimSuffix(data, []byte("\n"))
	document, err := canon.Parse(data)
	if err != nil {
		return nil, fmt.Errorf("the file is no bundle: %w", err)
	}
	if format, _ := document.Get("format"); format.Str() != Format {
		return nil, fmt.Errorf("the file is no bundle: its format is not %q", Format)
	}
	r := &reader{}
	b := r.bundle(document)
	if r.err != nil {
		return nil, r.err
	}
	if !bytes.Equal(b.Encode(), data) {
		return nil, errNotCanonical
	}
	return b, nil
}

// reader turns a parsed document into a bundle. It keeps the first fault. Members that
// it does not know, and wrong orders, show when the bundle is written again.
type reader struct{ err error }

func (r *reader) bundle(v canon.Value) *Bundle {
	b := &Bundle{
		GeneratedAt: r.text(v, "generated_at"), Receipt: r.text(v, "receipt"),
		ReceiptHash: r.text(v, "receipt_hash"), LogProof: r.text(v, "log_proof"), SigningKeys: r.textOrNull(v, "signing_keys"),
	}
	for _, item := range r.list(v, "anchors") {
		b.Anchors = append(b.Anchors, Anchor{
			Digest: r.text(item, "digest"), Method: r.text(item, "method"), Proof: r.text(item, "proof"), Subject: r.text(item, "subject"),
		})
	}
	entries, _ := v.Get("entries")
	b.Full = !entries.IsNull()
	if !b.Full {
		return b
	}
	for _, item := range r.list(v, "entries") {
		b.Entries = append(b.Entries, Entry{
			Body: r.text(item, "body"), Payload: r.optional(item, "payload"), Redactions: r.optional(item, "redactions"),
		})
	}
	for _, item := range r.list(v, "approvals") {
		b.Approvals = append(b.Approvals, Approval{
			KeyID: r.textOrNull(item, "key_id"), Record: r.text(item, "record"), Signature: r.textOrNull(item, "signature"),
		})
	}
	return b
}

func (r *reader) fault(name, want string) {
	if r.err == nil {
		r.err = fmt.Errorf("the bundle's member %q is not %s", name, want)
	}
}

func (r *reader) text(v canon.Value, name string) string {
	text := r.optional(v, name)
	if text == nil {
		r.fault(name, "a string")
		return ""
	}
	return *text
}

func (r *reader) textOrNull(v canon.Value, name string) string {
	text := r.optional(v, name)
	if text == nil {
		return ""
	}
	return *text
}

func (r *reader) optional(v canon.Value, name string) *string {
	member, ok := v.Get(name)
	if ok && member.Kind() == canon.String {
		text := member.Str()
		return &text
	}
	if !ok || !member.IsNull() {
		r.fault(name, "a string or null")
	}
	return nil
}

func (r *reader) list(v canon.Value, name string) []canon.Value {
	member, _ := v.Get(name)
	if member.Kind() != canon.Array {
		r.fault(name, "an array")
	}
	return member.Items()
}
