// Package api carries the HTTP contract: the OpenAPI document, written by hand
// and served as it is, and the page that shows it to people.
package api

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"fmt"
	"sync"

	"go.yaml.in/yaml/v3"
)

// YAML is the document as it was written. It must not be changed.
//
//go:embed openapi.yaml
var YAML []byte

var convertOnce = sync.OnceValues(func() ([]byte, error) { return toJSON(YAML) })

// JSON is the same document as JSON. The result is shared and must not be
// changed.
func JSON() ([]byte, error) { return convertOnce() }

// toJSON keeps the order of members, which a map would lose: readers of the
// document meet operations and properties in the order they were written in.
func toJSON(document []byte) ([]byte, error) {
	var root yaml.Node
	if err := yaml.Unmarshal(document, &root); err != nil {
		return nil, fmt.Errorf("read the API document: %w", err)
	}
	var out bytes.Buffer
	if err := writeNode(&out, &root); err != nil {
		return nil, fmt.Errorf("convert the API document: %w", err)
	}
	return out.Bytes(), nil
}

func writeNode(out *bytes.Buffer, node *yaml.Node) error {
	switch node.Kind {
	case yaml.DocumentNode:
		return writeNode(out, node.Content[0])
	case yaml.MappingNode:
		return writeMapping(out, node)
	case yaml.SequenceNode:
		return writeSequence(out, node)
	case yaml.ScalarNode:
		return writeScalar(out, node)
	default:
		return fmt.Errorf("line %d: neither mapping, sequence nor scalar", node.Line)
	}
}

func writeMapping(out *bytes.Buffer, node *yaml.Node) error {
	seen := make(map[string]bool, len(node.Content)/2)
	out.WriteByte('{')
	for i := 0; i < len(node.Content); i += 2 {
		name := node.Content[i]
		if name.Kind != yaml.ScalarNode || seen[name.Value] {
			return fmt.Errorf("line %d: a name must be a scalar and occur once", name.Line)
		}
		seen[name.Value] = true
		if i > 0 {
			out.WriteByte(',')
		}
		if err := writeValue(out, name.Value); err != nil {
			return err
		}
		out.WriteByte(':')
		if err := writeNode(out, node.Content[i+1]); err != nil {
			return err
		}
	}
	out.WriteByte('}')
	return nil
}

func writeSequence(out *bytes.Buffer, node *yaml.Node) error {
	out.WriteByte('[')
	for i, item := range node.Content {
		if i > 0 {
			out.WriteByte(',')
		}
		if err := writeNode(out, item); err != nil {
			return err
		}
	}
	out.WriteByte(']')
	return nil
}

func writeScalar(out *bytes.Buffer, node *yaml.Node) error {
	var value any
	if err := node.Decode(&value); err != nil {
		return fmt.Errorf("line %d: %w", node.Line, err)
	}
	return writeValue(out, value)
}

func writeValue(out *bytes.Buffer, value any) error {
	encoder := json.NewEncoder(out)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(value); err != nil {
		return fmt.Errorf("encode a value: %w", err)
	}
	out.Truncate(out.Len() - 1) // the encoder ends every value with a line break
	return nil
}
