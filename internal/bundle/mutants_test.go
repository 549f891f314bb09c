package bundle

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// makeVectors generates the cases: good bundles under several beliefs, then mutants of
// every part, and as many more as wanted that are edited at random places.
func makeVectors(t testing.TB, more int) *vectors {
	f := newLogFixture(t, "log", "log", 5)
	forger := newLogFixture(t, "log", "forger", 5)
	all := trustSet{LogKeys: []string{f.logKey()}, Witnesses: f.witnessKeys(), Quorum: 2}
	revokedAt := func(time string) trustSet {
		set := all
		set.RevokedAt = time
		return set
	}
	v := &vectors{
		Description: "Evidence bundles for verifiers; docs/bundles.md has the format and the checks. A case is a base with edits: set a value, remove it from its list, " +
			"insert it before a position, or splice bytes of a string's UTF-8. The document is then written in canonical form. failed and not_checked list the checks that " +
			"come to that, the others pass. files are texts that are no bundles. No verifier has roots for anchors.",
		Trust: map[string]trustSet{
			"all": all, "log": {LogKeys: all.LogKeys, Witnesses: []string{}}, "none": {LogKeys: []string{}, Witnesses: []string{}},
			"witnesses": {LogKeys: []string{}, Witnesses: all.Witnesses, Quorum: 2},
			"forger":    {LogKeys: []string{forger.logKey()}, Witnesses: []string{}},
			"rotation":  {LogKeys: []string{forger.logKey(), f.logKey()}, Witnesses: all.Witnesses, Quorum: 1},
			"quorum 3":  {LogKeys: all.LogKeys, Witnesses: all.Witnesses, Quorum: 3},
			"revoked":   revokedAt("2026-11-16T09:30:00Z"), "revoked in the same second": revokedAt("2026-11-16T09:30:00.999999999Z"),
			"revoked later": revokedAt("2026-11-16T10:30:01+01:00"), "revoked long ago": revokedAt("0001-01-01T00:00:00Z"),
			"other spelling": {LogKeys: []string{upperHash(all.LogKeys[0])}, Witnesses: []string{upperHash(all.Witnesses[0]), all.Witnesses[1]}, Quorum: 2},
		},
		Bases: map[string]string{
			"bundle": string(f.bundles[2].Encode()), "first": string(f.bundles[0].Encode()), "last": string(f.bundles[4].Encode()),
			"share": string(share(f.bundles[3]).Encode()), "forged": string(forger.bundles[2].Encode()),
			"alone": string(newLogFixture(t, "log", "log", 1).bundles[0].Encode()),
		},
	}
	v.files()
	v.refusedTrust(f)
	for _, base := range slices.Sorted(maps.Keys(v.Bases)) {
		for _, trust := range slices.Sorted(maps.Keys(v.Trust)) {
			v.Cases = append(v.Cases, bundleCase{Name: base + " under " + trust, Base: base, Trust: trust})
		}
	}
	v.addSigned(f)
	m := &mutator{t: t, vectors: v, base: "bundle", seen: make(map[string]bool)}
	document := parseDocument(t, v.Bases[m.base])
	m.mutate(nil, document)
	for _, other := range []string{"first", "last", "forged"} {
		m.exchange(other, nil, document, parseDocument(t, v.Bases[other]))
	}
	m.named(f.bundles[2])
	m.random(more, document)
	return v
}

// files adds texts that must be refused before any check.
func (v *vectors) files() {
	good := v.Bases["bundle"]
	for name, text := range map[string]string{
		"empty":              "",
		"no JSON":            "receipt",
		"a list":             "[" + good + "]",
		"two documents":      good + good,
		"cut short":          good[:len(good)/2],
		"a space in front":   " " + good,
		"two line breaks":    good + "\n\n",
		"reformatted":        strings.Replace(good, `,"format"`, `, "format"`, 1),
		"another format":     strings.Replace(good, Format, "countersign-bundle-v2", 1),
		"an unknown member":  strings.Replace(good, `,"receipt":`, `,"note":"x","receipt":`, 1),
		"a member twice":     strings.Replace(good, `"format":`, `"format":"x","format":`, 1),
		"out of order":       strings.Replace(strings.Replace(good, `"format":"`+Format+`",`, "", 1), `{"anchors"`, `{"format":"`+Format+`","anchors"`, 1),
		"escaped needlessly": strings.Replace(good, `"format":"c`, `"format":"\u0063`, 1),
		"a number":           strings.Replace(good, `"generated_at":"`+testTime+`"`, `"generated_at":1`, 1),
		"a null receipt":     strings.Replace(good, `"receipt_hash":"`, `"receipt_hash":null,"x":"`, 1),
		"an empty key":       strings.Replace(good, `"key_id":"`+approverID+`"`, `"key_id":""`, 1),
		"entries an object":  strings.Replace(good, `"entries":[`, `"entries":{},"x":[`, 1),
	} {
		v.Files = append(v.Files, fileCase{name, text})
	}
	slices.SortFunc(v.Files, func(a, b fileCase) int { return strings.Compare(a.Name, b.Name) })
}

// upperHash writes the hash in a vkey with capitals.
func upperHash(vkey string) string {
	parts := strings.SplitN(vkey, "+", 3)
	return parts[0] + "+" + strings.ToUpper(parts[1]) + "+" + parts[2]
}

// refusedTrust adds what a person may give a verifier by mistake, or be talked into giving.
func (v *vectors) refusedTrust(f *logFixture) {
	all := v.Trust["all"]
	v.Refused = make(map[string]trustSet)
	add := func(name string, change func(*trustSet)) {
		set := all
		change(&set)
		v.Refused[name] = set
	}
	broken := all.LogKeys[0]
	broken = broken[:len(broken)-4] + "\n" + broken[len(broken)-4:]
	add("a line break in a key", func(s *trustSet) { s.LogKeys = []string{broken} })
	for name, text := range map[string]string{
		"a space before": " %s", "a space behind": "%s ", "a line break behind": "%s\n", "a tab before": "\t%s", "a no-break space behind": "%s\u00a0", "a separator before": "\x1f%s",
	} {
		add(name+" a log key", func(s *trustSet) { s.LogKeys = []string{fmt.Sprintf(text, all.LogKeys[0])} })
		add(name+" a witness", func(s *trustSet) { s.Witnesses = []string{fmt.Sprintf(text, all.Witnesses[0]), all.Witnesses[1]} })
	}
	for name, text := range map[string]string{"a space": "a b", "a separator": "a\x1cb", "a line separator": "a\u2028b", "nothing": ""} {
		add(name+" in a log key's name", func(s *trustSet) { s.LogKeys = []string{vkey(text, algEd25519, f.witnesses[0])} })
		add(name+" in a witness's name", func(s *trustSet) { s.Witnesses = []string{vkey(text, algCosignV1, f.witnesses[0]), all.Witnesses[1]} })
	}
	for point := range smallOrder {
		add(fmt.Sprintf("a log key of small order, %x", point), func(s *trustSet) { s.LogKeys = []string{vkeyOf("countersign.example/log", algEd25519, point[:])} })
		point[len(point)-1] |= 0x80
		add(fmt.Sprintf("a witness of small order, %x", point), func(s *trustSet) {
			s.Witnesses = []string{vkeyOf(witnessName(0), algCosignV1, point[:]), all.Witnesses[1]}
		})
	}
	add("a witness as log key", func(s *trustSet) { s.LogKeys = all.Witnesses[:1] })
	add("a witness twice", func(s *trustSet) { s.Witnesses = []string{all.Witnesses[0], all.Witnesses[0]} })
	add("a witness in both forms", func(s *trustSet) {
		s.Witnesses = []string{all.Witnesses[0], vkey(witnessName(0), algEd25519, f.witnesses[0])}
	})
	add("a witness under two names", func(s *trustSet) {
		s.Witnesses = []string{all.Witnesses[0], vkey("other.example", algCosignV1, f.witnesses[0])}
	})
	add("a quorum out of reach", func(s *trustSet) { s.Quorum = 4 })
	add("a negative quorum", func(s *trustSet) { s.Quorum = -1 })
	add("revoked and no witnesses", func(s *trustSet) {
		*s = trustSet{LogKeys: all.LogKeys, Witnesses: []string{}, RevokedAt: "2026-11-16T09:30:00Z"}
	})
	for _, time := range []string{
		"yesterday", "2026-11-16", "2026-11-16T09:30:00", "2026-11-16 09:30:00Z", "2026-02-30T09:30:00Z", "2026-11-16T24:00:00Z", "2026-11-16T09:30:00+25:00",
		"2026-11-16T9:30:00Z", "2026-11-16T09:30:00,5Z", "2026-11-16T09:30:00.1234567891Z", "2026-11-16T09:30:00+24:00", "2026-11-16T09:30:00+23:60", "2026-11-16T09:30:00+00:60", "0000-01-01T00:00:00Z", "2026-11-16T09:30:00Z ",
	} {
		add("revoked at "+time, func(s *trustSet) { s.RevokedAt = time })
	}
}

// mutator makes cases that differ from a base in one place.
type mutator struct {
	t       testing.TB
	vectors *vectors
	base    string
	seen    map[string]bool // texts that are cases already
}

// add keeps a mutant, unless its text is not new.
func (m *mutator) add(what string, edits ...edit) {
	c := bundleCase{Base: m.base, Trust: "all", Edits: edits}
	text := string(c.text(m.t, m.vectors))
	if text == m.vectors.Bases[m.base] || m.seen[text] {
		return
	}
	m.seen[text] = true
	c.Name = what + " " + pathName(edits[0].Path)
	m.vectors.Cases = append(m.vectors.Cases, c)
}

func pathName(path []any) string {
	var parts []string
	for _, part := range path {
		parts = append(parts, fmt.Sprint(part))
	}
	return strings.Join(parts, ".")
}

// mutate walks a document and edits every string and every list.
func (m *mutator) mutate(path []any, v any) {
	switch v := v.(type) {
	case string:
		if pathName(path) != "format" {
			m.text(path, v)
		}
	case []any:
		for i, item := range v {
			at := append(slices.Clone(path), i)
			m.add("remove", edit{Path: at, Op: "remove"})
			m.add("repeat", edit{Path: at, Op: "insert", Value: item})
			if i > 0 {
				m.add("swap", edit{Path: at, Op: "remove"}, edit{Path: append(slices.Clone(path), i-1), Op: "insert", Value: item})
			}
			m.mutate(at, item)
		}
	case map[string]any:
		for _, name := range slices.Sorted(maps.Keys(v)) {
			m.mutate(append(slices.Clone(path), name), v[name])
		}
	}
}

// nullable are members that a bundle may have without a value.
var nullable = []string{"payload", "redactions", "signature", "key_id", "signing_keys"}

func (m *mutator) text(path []any, text string) {
	for part := range 6 {
		m.splice(path, text, part*len(text)/6)
	}
	m.splice(path, text, len(text)-1)
	m.add("cut", edit{Path: path, Op: "splice", Splice: &splice{At: len(text) / 2, Remove: len(text) - len(text)/2}})
	if last := path[len(path)-1]; slices.Contains(nullable, fmt.Sprint(last)) {
		m.add("without", edit{Path: path, Op: "set"})
	} else {
		m.add("empty", edit{Path: path, Op: "set", Value: ""})
	}
	at := 0
	lines := strings.SplitAfter(text, "\n")
	for i, line := range lines {
		if len(lines) > 1 && line != "" {
			m.splice(path, text, at+len(line)/2)
			m.splice(path, text, at+len(line)-2)
			m.add(fmt.Sprint("drop line ", i+1, " of"), edit{Path: path, Op: "splice", Splice: &splice{At: at, Remove: len(line)}})
			if !strings.HasPrefix(line, "— ") { // of the same signature twice the second does not count
				m.add(fmt.Sprint("repeat line ", i+1, " of"), edit{Path: path, Op: "splice", Splice: &splice{At: at, Insert: line}})
			}
		}
		at += len(line)
	}
}

// splice changes, drops and repeats the byte at a position, where it is a letter or a digit.
func (m *mutator) splice(path []any, text string, at int) {
	if at < 0 || at >= len(text) || !strings.Contains(alphanumeric, text[at:at+1]) {
		return
	}
	next := alphanumeric[(strings.IndexByte(alphanumeric, text[at])+1)%len(alphanumeric)]
	m.add(fmt.Sprint("change byte ", at, " of"), edit{Path: path, Op: "splice", Splice: &splice{At: at, Remove: 1, Insert: string(next)}})
	m.add(fmt.Sprint("drop byte ", at, " of"), edit{Path: path, Op: "splice", Splice: &splice{At: at, Remove: 1}})
	m.add(fmt.Sprint("repeat byte ", at, " of"), edit{Path: path, Op: "splice", Splice: &splice{At: at, Insert: text[at : at+1]}})
}

const alphanumeric = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"

// exchange takes each part from another valid or forged bundle.
func (m *mutator) exchange(other string, path []any, ours, theirs any) {
	if len(path) > 0 {
		m.add("from "+other, edit{Path: path, Op: "set", Value: theirs})
	}
	switch ours := ours.(type) {
	case []any:
		theirs := theirs.([]any)
		for i := range min(len(ours), len(theirs)) {
			m.exchange(other, append(slices.Clone(path), i), ours[i], theirs[i])
		}
	case map[string]any:
		for _, name := range slices.Sorted(maps.Keys(ours)) {
			m.exchange(other, append(slices.Clone(path), name), ours[name], theirs.(map[string]any)[name])
		}
	}
}

// named adds mutants on which verifiers that were written from the document once differed.
func (m *mutator) named(b *Bundle) {
	dash := strings.Index(b.LogProof, "— witness") + len("—")
	m.add("no space behind a dash in", edit{Path: []any{"log_proof"}, Op: "splice", Splice: &splice{At: dash, Remove: 1, Insert: "4"}})
	for _, member := range []string{"payload", "redactions"} {
		m.add("beside what is no event", edit{Path: []any{"entries", 1, member}, Op: "set", Value: "{}"})
	}
}

// random adds mutants at random places of random strings.
func (m *mutator) random(more int, document any) {
	type leaf struct {
		path []any
		text string
	}
	var leaves []leaf
	var collect func(path []any, v any)
	collect = func(path []any, v any) {
		switch v := v.(type) {
		case string:
			leaves = append(leaves, leaf{path, v})
		case []any:
			for i := range v {
				collect(append(slices.Clone(path), i), v[i])
			}
		case map[string]any:
			for _, name := range slices.Sorted(maps.Keys(v)) {
				if name != "format" {
					collect(append(slices.Clone(path), name), v[name])
				}
			}
		}
	}
	collect(nil, document)
	source := rand.New(rand.NewPCG(1, 2))
	for wanted := len(m.vectors.Cases) + more; len(m.vectors.Cases) < wanted; {
		leaf := leaves[source.IntN(len(leaves))]
		at, insert := source.IntN(len(leaf.text)), alphanumeric[source.IntN(len(alphanumeric))]
		if leaf.text[at] < utf8.RuneSelf {
			m.add(fmt.Sprint("byte ", at, " becomes ", string(insert), " in"), edit{Path: leaf.path, Op: "splice", Splice: &splice{At: at, Remove: 1, Insert: string(insert)}})
		}
	}
}
