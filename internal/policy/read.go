package policy

import (
	"unicode/utf8"
)

// read converts a document to nodes, or returns the reasons why it cannot.
func read(document []byte, format Format) (*problems, *node, error) {
	if len(document) > MaxDocument {
		found := &problems{source: newSource(nil)}
		found.report("", 0, "the document has %d bytes: at most %d are read, split it up", len(document), MaxDocument)
		return nil, nil, found.err()
	}
	found := &problems{source: newSource(document)}
	if at := invalidUTF8(document); at >= 0 {
		found.report("", at, "invalid UTF-8: save the document as UTF-8")
		return nil, nil, found.err()
	}
	var root *node
	if format == YAML {
		root = readYAML(found)
	} else {
		root = readJSON(found)
	}
	if err := found.err(); err != nil {
		return nil, nil, err
	}
	return found, root, nil
}

// invalidUTF8 returns the offset of the first invalid UTF-8, or -1.
func invalidUTF8(data []byte) int {
	for i := 0; i < len(data); {
		r, width := utf8.DecodeRune(data[i:])
		if r == utf8.RuneError && width == 1 {
			return i
		}
		i += width
	}
	return -1
}
