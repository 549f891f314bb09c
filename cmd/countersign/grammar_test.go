package main

import (
	"bytes"
	"testing"

	"github.com/alecthomas/kong"
)

// A command is read without the others, and neither its help nor its errors tell the difference.
func TestCommandsAreReadAlone(t *testing.T) {
	t.Parallel()
	var said bytes.Buffer
	whole, err := newParser(new(commandLine), &said, &said, func(int) { panic("exit") })
	if err != nil {
		t.Fatal(err)
	}
	var leaves func(node *kong.Node, path []string)
	leaves = func(node *kong.Node, path []string) {
		for _, last := range []string{"--help", "--no-such-flag", "no-such-argument"} {
			args := append(path[:len(path):len(path)], last)
			alone, err := newParser(grammarOf(args), &said, &said, func(int) { panic("exit") })
			if err != nil {
				t.Fatal(err)
			}
			if want, got := answer(whole, &said, args), answer(alone, &said, args); got != want {
				t.Errorf("%v is answered %q, want %q", args, got, want)
			}
		}
		for _, child := range node.Children {
			leaves(child, append(path[:len(path):len(path)], child.Name))
		}
	}
	for _, command := range whole.Model.Children {
		if grammar, isWhole := grammarOf([]string{command.Name}).(*commandLine); isWhole != (command.Name == "completion") {
			t.Errorf("%s is read with the grammar %T", command.Name, grammar)
		}
		leaves(command, []string{command.Name})
	}
}

// answer is what a parser says to arguments that run nothing: help ends with a panic here, as it would end
// the program.
func answer(parser *kong.Kong, said *bytes.Buffer, args []string) (text string) {
	said.Reset()
	defer func() {
		if recover() != nil {
			text = said.String()
		}
	}()
	_, err := parser.Parse(args)
	if err == nil {
		return "no error"
	}
	return explainParseError(err).Error()
}
