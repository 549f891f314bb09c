package policy

import (
	"errors"
	"io"
	"regexp"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"countersign/internal/canon"
)

// readYAML parses a YAML document: the part of YAML that JSON also has, plus its ways of writing
// strings. Features that make two readers see two documents (anchors, tags, duplicate keys, several
// documents in one) are refused.
func readYAML(found *problems) *node {
	decoder := yaml.NewDecoder(strings.NewReader(found.source.data))
	var document, second yaml.Node
	if err := decoder.Decode(&document); err != nil {
		reportYAML(found, err)
		return nil
	}
	if err := decoder.Decode(&second); !errors.Is(err, io.EOF) {
		if err != nil {
			reportYAML(found, err)
			return nil
		}
		found.report("", found.source.offset(second.Line, second.Column), "a second document begins here: put each into a file of its own")
		return nil
	}
	root := (&yamlReader{found}).value(document.Content[0], 0)
	if len(found.list) > 0 {
		return nil
	}
	return root
}

var yamlLine = regexp.MustCompile(`^yaml: (?:line (\d+): )?`)

func reportYAML(found *problems, err error) {
	if errors.Is(err, io.EOF) {
		found.report("", 0, "the document is empty: write at least \"rules: []\"")
		return
	}
	prefix := yamlLine.FindStringSubmatch(err.Error())
	line := 1
	detail := err.Error()
	if prefix != nil {
		detail = strings.TrimPrefix(detail, prefix[0])
		if n, err := strconv.Atoi(prefix[1]); err == nil {
			line = n
		}
	}
	found.report("", found.source.offset(line, 1), "not acceptable YAML: %s", detail)
}

type yamlReader struct {
	found *problems
}

func (y *yamlReader) value(n *yaml.Node, depth int) *node {
	at := &node{start: y.found.source.offset(n.Line, n.Column)}
	switch {
	case depth > canon.MaxDepth:
		y.refuse(at, "nested deeper than %d levels", canon.MaxDepth)
	case n.Kind == yaml.AliasNode:
		y.refuse(at, "aliases are not read: write the value out")
	case n.Anchor != "":
		y.refuse(at, "anchors are not read: remove it, and write the value where it is needed")
	case n.Style&yaml.TaggedStyle != 0:
		y.refuse(at, "tags are not read: remove it")
	case n.Kind == yaml.MappingNode:
		y.object(at, n, depth)
	case n.Kind == yaml.SequenceNode:
		at.kind = canon.Array
		for _, item := range n.Content {
			at.items = append(at.items, y.value(item, depth+1))
		}
	default:
		scalar(at, n)
	}
	return at
}

func (y *yamlReader) object(at *node, n *yaml.Node, depth int) {
	at.kind = canon.Object
	seen := make(map[string]bool, len(n.Content)/2)
	for i := 0; i+1 < len(n.Content); i += 2 {
		name := y.value(n.Content[i], depth+1)
		switch {
		case name.kind != canon.String:
			y.refuse(name, "a name must be a string: put it in quotes")
		case seen[name.value]:
			y.refuse(name, "%q is given twice: remove one", name.value)
		}
		seen[name.value] = true
		at.members = append(at.members, member{name, y.value(n.Content[i+1], depth+1)})
	}
}

func (y *yamlReader) refuse(at *node, format string, args ...any) {
	y.found.report("", at.start, format, args...)
}

// scalar uses the type that the YAML reader resolves. A date is a string here, as in JSON.
func scalar(at *node, n *yaml.Node) {
	at.value = n.Value
	switch n.ShortTag() {
	case "!!null":
		at.kind = canon.Null
	case "!!bool":
		at.kind, at.value = canon.Bool, strings.ToLower(n.Value)
	case "!!int", "!!float":
		at.kind = canon.Number
	default:
		at.kind = canon.String
	}
	switch {
	case n.Style&yaml.DoubleQuotedStyle != 0:
		at.quoting = doubleQuoted
	case n.Style&yaml.SingleQuotedStyle != 0:
		at.quoting = singleQuoted
	case n.Style&(yaml.LiteralStyle|yaml.FoldedStyle) != 0:
		at.quoting = block
	}
}
