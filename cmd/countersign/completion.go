package main

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/alecthomas/kong"

	"countersign/internal/cli"
)

type completionCommand struct {
	Shell string `arg:"" help:"The shell: ${enum}." enum:"bash,zsh,fish"`
}

// Help returns how to use the scripts.
func (*completionCommand) Help() string {
	// Kong joins lines into paragraphs, except indented ones.
	return "For the current shell:\n\n" +
		"  bash: source <(countersign completion bash)\n" +
		"  zsh:  source <(countersign completion zsh)\n" +
		"  fish: countersign completion fish | source"
}

// Run writes the script.
func (c *completionCommand) Run(p *cli.Process, parser *kong.Kong) error {
	places := placesOf(parser.Model)
	switch c.Shell {
	case "bash":
		writeBash(p.Out, places)
	case "zsh":
		writeZsh(p.Out, places)
	case "fish":
		writeFish(p.Out, places)
	}
	return nil
}

// place is a point on the command line: the words before it, and what can follow.
type place struct {
	path     string // "" at the top, then "keys", "keys create"
	commands []suggestion
	flags    []suggestion
}

type suggestion struct {
	word, help string
	takes      valueKind // of a flag
	values     []string  // of a flag or an argument with an enum
}

// valueKind is the kind of value that a flag takes.
type valueKind int

const (
	takesNothing valueKind = iota
	takesText
	takesPath
)

func valueKindOf(flag *kong.Flag) valueKind {
	switch {
	case flag.IsBool():
		return takesNothing
	case slices.Contains([]string{"path", "existingfile", "existingdir"}, flag.Tag.Type):
		return takesPath
	}
	return takesText
}

func placesOf(model *kong.Application) []place {
	var places []place
	var visit func(node *kong.Node, path string)
	visit = func(node *kong.Node, path string) {
		here := place{path: path}
		for _, group := range node.AllFlags(true) {
			for _, flag := range group {
				here.flags = append(here.flags, suggestion{"--" + flag.Name, flag.Help, valueKindOf(flag), enumOf(flag.Value)})
			}
		}
		for _, argument := range node.Positional {
			for _, word := range enumOf(argument) {
				here.commands = append(here.commands, suggestion{word: word})
			}
		}
		for _, child := range node.Children {
			here.commands = append(here.commands, suggestion{word: child.Name, help: child.Help})
		}
		places = append(places, here)
		for _, child := range node.Children {
			visit(child, strings.TrimSpace(path+" "+child.Name))
		}
	}
	visit(model.Node, "")
	return places
}

func enumOf(value *kong.Value) []string {
	if value.Enum == "" {
		return nil
	}
	return value.EnumSlice()
}

func words(suggestions ...[]suggestion) string {
	var all []string
	for _, group := range suggestions {
		for _, s := range group {
			all = append(all, s.word)
		}
	}
	return strings.Join(all, " ")
}

// writeCases writes the two tables that bash and zsh share: what can follow a path, and
// which values a flag takes. Where no values are known, the shell offers files.
func writeCases(w io.Writer, places []place) {
	fmt.Fprint(w, "  case \"$at\" in\n")
	for _, here := range places {
		fmt.Fprintf(w, "    '%s') follow='%s' ;;\n", here.path, words(here.commands, here.flags))
	}
	fmt.Fprint(w, "  esac\n  case \"$at:$before\" in\n")
	for _, here := range places {
		for _, flag := range here.flags {
			if flag.takes != takesNothing {
				fmt.Fprintf(w, "    '%s:%s') follow='%s' ;;\n", here.path, flag.word, strings.Join(flag.values, " "))
			}
		}
	}
	fmt.Fprint(w, "  esac\n")
}

// writeWalk writes the loop that finds the path in the words before the cursor. It skips
// words that are no command: flags and their values.
func writeWalk(w io.Writer, places []place, sequence string) {
	fmt.Fprintf(w, "  for word in %s; do\n    case \"${at:+$at }$word\" in\n", sequence)
	var paths []string
	for _, here := range places {
		if here.path != "" {
			paths = append(paths, "'"+here.path+"'")
		}
	}
	fmt.Fprintf(w, "      %s) at=\"${at:+$at }$word\" ;;\n    esac\n  done\n", strings.Join(paths, "|"))
}

func writeBash(w io.Writer, places []place) {
	fmt.Fprint(w, "# bash completion for countersign\n_countersign() {\n"+
		"  local at='' follow='' word current=\"${COMP_WORDS[COMP_CWORD]}\" before=\"${COMP_WORDS[COMP_CWORD-1]}\"\n")
	writeWalk(w, places, `"${COMP_WORDS[@]:1:COMP_CWORD-1}"`)
	writeCases(w, places)
	fmt.Fprint(w, "  mapfile -t COMPREPLY < <(compgen -W \"$follow\" -- \"$current\")\n}\n"+
		"complete -o default -F _countersign countersign\n")
}

func writeZsh(w io.Writer, places []place) {
	fmt.Fprint(w, "#compdef countersign\n_countersign() {\n"+
		"  local at='' follow='' word before=\"${words[CURRENT-1]}\"\n")
	writeWalk(w, places, `"${(@)words[2,CURRENT-1]}"`)
	writeCases(w, places)
	fmt.Fprint(w, "  compadd -- ${=follow} || _files\n}\ncompdef _countersign countersign\n")
}

func writeFish(w io.Writer, places []place) {
	fmt.Fprint(w, "# fish completion for countersign\nfunction __countersign_at\n  set -l at ''\n"+
		"  for word in (commandline -opc)[2..-1]\n    set -l next (string trim -- \"$at $word\")\n    switch $next\n      case")
	for _, here := range places {
		if here.path != "" {
			fmt.Fprintf(w, " '%s'", here.path)
		}
	}
	fmt.Fprint(w, "\n        set at $next\n    end # of the switch\n  end # of the loop\n  test \"$at\" = \"$argv[1]\"\nend\n")
	for _, here := range places {
		condition := fmt.Sprintf(`complete -c countersign -n "__countersign_at '%s'"`, here.path)
		for _, command := range here.commands {
			fmt.Fprintf(w, "%s -f -a %s%s\n", condition, command.word, fishHelp(command.help))
		}
		for _, flag := range here.flags {
			fmt.Fprintf(w, "%s -l %s%s%s\n", condition, strings.TrimPrefix(flag.word, "--"), fishValues(flag), fishHelp(flag.help))
		}
	}
}

// fishValues returns what follows a flag: files if it takes a path, otherwise only the
// known values.
func fishValues(flag suggestion) string {
	switch {
	case flag.takes == takesNothing:
		return ""
	case flag.takes == takesPath:
		return " -r -F"
	case len(flag.values) == 0:
		return " -x"
	}
	return fmt.Sprintf(" -x -a '%s'", strings.Join(flag.values, " "))
}

func fishHelp(help string) string {
	if help == "" {
		return ""
	}
	return " -d '" + strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(help) + "'"
}
