package main

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
	"go.yaml.in/yaml/v3"

	"countersign/internal/cli"
)

// configFile resolves flags from the file that --config names: YAML or JSON, with one
// member for each flag of serve. It overrides the defaults and is overridden by the
// environment.
type configFile struct {
	path   string
	values map[string]any
}

const (
	configFlag    = "config"
	maxConfigFile = 1 << 20
)

// configError is an error in the configuration file. It is reported without the flag
// that kong was resolving when the file was read.
type configError struct{ error }

func (e *configError) Unwrap() error { return e.error }

// Validate implements kong.Resolver.
func (*configFile) Validate(*kong.Application) error { return nil }

// Resolve implements kong.Resolver.
func (c *configFile) Resolve(parsing *kong.Context, _ *kong.Path, flag *kong.Flag) (any, error) {
	// A flag without a variable is not a setting, even if serve has one of the same name, such as
	// --witness.
	if flag.Name == configFlag || len(flag.Envs) == 0 || setByEnvironment(flag) {
		return nil, nil
	}
	path := configPath(parsing)
	if path == "" {
		return nil, nil
	}
	if c.path != path {
		known, err := settable()
		if err != nil {
			return nil, err
		}
		values, err := readConfig(path, known)
		if err != nil {
			return nil, &configError{err}
		}
		c.path, c.values = path, values
	}
	return c.values[flag.Name], nil
}

func setByEnvironment(flag *kong.Flag) bool {
	return slices.ContainsFunc(flag.Envs, func(name string) bool {
		_, set := os.LookupEnv(name)
		return set
	})
}

// configPath returns the file's name from the flag or its environment variable.
func configPath(parsing *kong.Context) string {
	for _, step := range parsing.Path {
		for _, flag := range step.Flags {
			if flag.Name != configFlag {
				continue
			}
			if path, ok := parsing.FlagValue(flag).(string); ok {
				return path
			}
		}
	}
	return ""
}

// settable returns the flags that a file may set. The file is written for the server;
// other commands use the settings that they have a flag for.
func settable() (map[string]*kong.Flag, error) {
	parser, err := newParser(grammarOf([]string{"serve"}), io.Discard, io.Discard, func(int) {})
	if err != nil {
		return nil, err
	}
	flags := make(map[string]*kong.Flag)
	for _, flag := range parser.Model.Children[0].Flags {
		if flag.Name != configFlag && flag.Name != "help" {
			flags[flag.Name] = flag
		}
	}
	return flags, nil
}

func readConfig(path string, known map[string]*kong.Flag) (map[string]any, error) {
	file, err := os.Open(path) //nolint:gosec // the operator names the file
	if err != nil {
		return nil, fmt.Errorf("configuration file: %w", err)
	}
	defer file.Close()
	data, err := cli.ReadBounded(file, maxConfigFile)
	if err != nil {
		return nil, fmt.Errorf("configuration file %s: %w", path, err)
	}
	var values map[string]any
	if err := yaml.Unmarshal(data, &values); err != nil {
		return nil, fmt.Errorf("configuration file %s is not YAML or JSON of the form \"flag: value\": %w", path, err)
	}
	lines := linesOf(data)
	var faults []error
	for _, name := range slices.Sorted(maps.Keys(values)) {
		if fault := checkSetting(name, values[name], known); fault != "" {
			faults = append(faults, fmt.Errorf("configuration file %s%s: %s", path, lines[name], fault))
		}
	}
	return values, errors.Join(faults...)
}

// linesOf returns the line of each setting, as text for an error.
func linesOf(data []byte) map[string]string {
	lines := make(map[string]string)
	var document yaml.Node
	if yaml.Unmarshal(data, &document) != nil || len(document.Content) == 0 {
		return lines
	}
	settings := document.Content[0].Content // names and values alternate
	for i := 0; i+1 < len(settings); i += 2 {
		lines[settings[i].Value] = fmt.Sprintf(", line %d", settings[i].Line)
	}
	return lines
}

// checkSetting returns what is wrong with a setting, or "". Kinds that it does not know
// are checked when kong decodes the flag.
func checkSetting(name string, value any, known map[string]*kong.Flag) string {
	flag := known[name]
	switch {
	case flag == nil:
		return fmt.Sprintf("there is no setting %q; the settings are %s", name, strings.Join(slices.Sorted(maps.Keys(known)), ", "))
	case value == nil:
		return name + " has no value"
	}
	switch flag.Target.Kind() {
	case reflect.String:
		return checkText(flag, value)
	case reflect.Float64:
		if kind := reflect.ValueOf(value).Kind(); kind != reflect.Int && kind != reflect.Float64 {
			return name + " must be a number"
		}
	case reflect.Bool:
		if _, ok := value.(bool); !ok {
			return name + " must be true or false"
		}
	case reflect.Slice:
		if !isTexts(value) {
			return name + " must be a list of texts, each in quotes"
		}
	default:
	}
	return ""
}

func checkText(flag *kong.Flag, value any) string {
	text, ok := value.(string)
	choices := enumOf(flag.Value)
	switch {
	case !ok:
		return flag.Name + " must be text, in quotes"
	case len(choices) > 0 && !slices.Contains(choices, text):
		return fmt.Sprintf("%s must be one of %s", flag.Name, strings.Join(choices, ", "))
	}
	return ""
}

// isTexts reports whether value is a list of texts. Like the flags, it accepts a single
// text.
func isTexts(value any) bool {
	if _, ok := value.(string); ok {
		return true
	}
	list, ok := value.([]any)
	return ok && !slices.ContainsFunc(list, func(element any) bool {
		_, ok := element.(string)
		return !ok
	})
}
