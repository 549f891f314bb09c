package policy

import (
	"embed"
	"slices"
	"strings"
)

//go:embed packs
var packs embed.FS

// Pack returns a built-in policy set as YAML. ok is false if there is none with the name.
func Pack(name string) (text []byte, ok bool) {
	if !slices.Contains(Packs(), name) {
		return nil, false
	}
	text, err := packs.ReadFile("packs/" + name + ".yaml")
	return text, err == nil
}

// Packs returns the names of all built-in sets.
func Packs() (names []string) {
	files, err := packs.ReadDir("packs")
	if err != nil { // they are embedded, so this cannot happen
		panic(err)
	}
	for _, file := range files {
		name := strings.TrimSuffix(file.Name(), ".yaml")
		if !strings.Contains(name, ".") {
			names = append(names, name)
		}
	}
	return names
}
