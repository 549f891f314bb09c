package main

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
	"go.yaml.in/yaml/v3"
)

// configFile finds flags in the file that --config names: YAML or JSON, one
// member for each flag of serve, by its name. It stands between the defaults and
// the environment.
type configFile struct {
	path   string
	values map[string]any
}

const (
	configFlag    = "config"
	maxConfigFile = 1 << 20
)

// configError is a fault of the file. It is reported without the flag in whose
// name the file happened to be read.
type configError struct{ error }

func (e *configError) Unwrap() error { return e.error }

// Validate implements kong.Resolver.
func (*configFile) Validate(*kong.Application) error { return nil }

// Resolve implements kong.Resolver.
func (c *configFile) Resolve(parsing *kong.Context, _ *kong.Path, flag *kong.Flag) (any, error) {
	if flag.Name == configFlag || setByEnvironment(flag) {
		return nil, nil
	}
	path := configPath(parsing)
	if path == "" {
		return nil, nil
	}
	if c.path != path {
		values, err := readConfig(path, serveFlags(parsing.Model))
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

// configPath is the file's name from the flag, or from the flag's variable.
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

// serveFlags are the names that a file may use. A file is written for the server,
// and the other commands take from it what concerns them.
func serveFlags(model *kong.Application) []string {
	var names []string
	for _, command := range model.Children {
		if command.Name != "serve" {
			continue
		}
		for _, flag := range command.Flags {
			if flag.Name != configFlag && flag.Name != "help" {
				names = append(names, flag.Name)
			}
		}
	}
	slices.Sort(names)
	return names
}

func readConfig(path string, known []string) (map[string]any, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("configuration file: %w", err)
	}
	defer file.Close()
	data, err := readBounded(file, maxConfigFile)
	if err != nil {
		return nil, fmt.Errorf("configuration file %s: %w", path, err)
	}
	var values map[string]any
	if err := yaml.Unmarshal(data, &values); err != nil {
		return nil, fmt.Errorf("configuration file %s is not YAML or JSON of the form \"flag: value\": %w", path, err)
	}
	return values, checkConfig(path, values, known)
}

func checkConfig(path string, values map[string]any, known []string) error {
	var faults []error
	for name, value := range values {
		if !slices.Contains(known, name) {
			faults = append(faults, fmt.Errorf("configuration file %s: there is no setting %q; there are %s", path, name, strings.Join(known, ", ")))
		}
		if value == nil {
			faults = append(faults, fmt.Errorf("configuration file %s: %q has no value", path, name))
		}
	}
	return errors.Join(faults...)
}
