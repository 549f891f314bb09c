package policy

import (
	"crypto/sha256"
	"slices"
)

// Format is the format of a document.
type Format int

// The formats of a policy document.
const (
	JSON Format = iota
	YAML
)

// Rule is one rule of a set. Optional texts are empty if they are not given. Mode is never empty.
type Rule struct {
	Name        string
	When        string
	Decision    string
	Reason      string
	Remediation string
	DocsURL     string
	Mode        string
	Approvers   []string // names of API keys or e-mail addresses
}

// Set is a checked and compiled policy document. It is immutable and safe for concurrent use.
type Set struct {
	rules      []Rule
	conditions []*condition // conditions[i] is for rules[i]
	fastPath   *bool
	stateful   bool     // some condition reads more than the action
	joint      bool     // some part that reads more than the action also reads the action
	slow       []string // names of rules
	budgets    []string // names of the budgets that conditions read, sorted
	canonical  []byte
	hash       [sha256.Size]byte
}

// Parse parses a document. It returns the compiled set, or an *Error with all problems.
func Parse(document []byte, format Format) (*Set, error) {
	return parseDocument(document, format, false)
}

// ParseStored is Parse for a document that was put before. A set that was put under the limits of
// an earlier version is accepted and keeps those limits.
func ParseStored(document []byte, format Format) (*Set, error) {
	return parseDocument(document, format, true)
}

func parseDocument(document []byte, format Format, stored bool) (*Set, error) {
	set, err := decode(document, format, decoder{stored: stored, slow: make(map[string]bool)})
	if err != nil {
		return nil, err
	}
	set.findBudgets()
	return set, nil
}

func decode(document []byte, format Format, d decoder) (*Set, error) {
	found, root, err := read(document, format)
	if err != nil {
		return nil, err
	}
	d.problems = found
	set := d.document(root)
	if err := found.err(); err != nil {
		return nil, err
	}
	set.canonical = set.appendCanonical(nil)
	set.hash = sha256.Sum256(set.canonical)
	return set, nil
}

// Outline is the content of a document without compiled conditions, because compiling takes
// hundreds of times longer. It cannot decide anything.
type Outline struct{ set *Set }

// ReadStored returns the outline of a document that was put before.
func ReadStored(document []byte, format Format) (*Outline, error) {
	set, err := decode(document, format, decoder{stored: true, outline: true})
	if err != nil {
		return nil, err
	}
	return &Outline{set}, nil
}

// Rules is like Set.Rules.
func (o *Outline) Rules() []Rule { return o.set.Rules() }

// FastPath is like Set.FastPath.
func (o *Outline) FastPath() (allowed, given bool) { return o.set.FastPath() }

// Canonical is like Set.Canonical.
func (o *Outline) Canonical() []byte { return o.set.Canonical() }

// Rules returns the rules in the order of the document. The caller must not modify what they refer
// to.
func (s *Set) Rules() []Rule { return slices.Clone(s.rules) }

// StateReadsAction reports whether Match reads the action itself, in addition to the result of
// Examine.
func (s *Set) StateReadsAction() bool { return s.joint }

// Slow returns the names of the rules that would be refused today because they cost too much inside
// the transaction. Only ParseStored accepts a set with such rules.
func (s *Set) Slow() []string { return slices.Clone(s.slow) }

// FastPath returns whether clients may decide harmless actions themselves, and whether the document
// says so explicitly.
func (s *Set) FastPath() (allowed, given bool) {
	if s.fastPath == nil {
		return false, false
	}
	return *s.fastPath, true
}

// Canonical returns the canonical JSON of the document, without members that only repeat a default,
// so that the same rules have the same text in both formats. Parsing it gives the same set. The
// caller must not modify it.
func (s *Set) Canonical() []byte { return s.canonical }

// Hash returns the SHA-256 of Canonical.
func (s *Set) Hash() [sha256.Size]byte { return s.hash }
