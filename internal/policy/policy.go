package policy

import (
	"crypto/sha256"
	"slices"
)

// Format is the language a document is written in.
type Format int

// The formats of a policy document.
const (
	JSON Format = iota
	YAML
)

// Rule is one rule of a set. The optional texts are empty when they are not
// given; Mode is never empty.
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

// Set is a policy document, checked and compiled. It is immutable and safe for
// concurrent use.
type Set struct {
	rules      []Rule
	conditions []*condition // of the rule with the same index
	fastPath   *bool
	stateful   bool     // a condition reads more than the action
	joint      bool     // a part that reads more than the action reads the action too
	slow       []string // names of rules
	budgets    []string // that conditions ask about, in order of name
	canonical  []byte
	hash       [sha256.Size]byte
}

// Parse reads a document. It returns all of it compiled, or an *Error with all
// that is wrong with it.
func Parse(document []byte, format Format) (*Set, error) {
	return parseDocument(document, format, false)
}

// ParseStored is Parse for a document that was put before. What was put under the
// bounds of an earlier version is read all the same, and keeps those bounds.
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

// Outline is what a document says, without its conditions being compiled, which takes
// hundreds of times longer. It decides nothing.
type Outline struct{ set *Set }

// ReadStored reads the outline of a document that was put before.
func ReadStored(document []byte, format Format) (*Outline, error) {
	set, err := decode(document, format, decoder{stored: true, outline: true})
	if err != nil {
		return nil, err
	}
	return &Outline{set}, nil
}

// Rules are as in Set.
func (o *Outline) Rules() []Rule { return o.set.Rules() }

// FastPath is as in Set.
func (o *Outline) FastPath() (allowed, given bool) { return o.set.FastPath() }

// Canonical is as in Set.
func (o *Outline) Canonical() []byte { return o.set.Canonical() }

// Rules returns the rules in the order of the document. The caller must not
// modify what they refer to.
func (s *Set) Rules() []Rule { return slices.Clone(s.rules) }

// StateReadsAction reports whether Match reads the action, beyond what Examine has said
// of it.
func (s *Set) StateReadsAction() bool { return s.joint }

// Slow returns the names of the rules that could not be put any more: they cost more
// inside the transaction than a rule may now. Only ParseStored reads a set with any.
func (s *Set) Slow() []string { return slices.Clone(s.slow) }

// FastPath returns whether clients may decide harmless actions on their own, and
// whether the document says so at all.
func (s *Set) FastPath() (allowed, given bool) {
	if s.fastPath == nil {
		return false, false
	}
	return *s.fastPath, true
}

// Canonical returns the canonical JSON of the document, without what only
// repeats a default: the same rules have the same text in either format. Parse
// reads it back to the same set. The caller must not modify it.
func (s *Set) Canonical() []byte { return s.canonical }

// Hash returns the SHA-256 of Canonical.
func (s *Set) Hash() [sha256.Size]byte { return s.hash }
