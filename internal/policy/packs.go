package policy

import (
	"embed"
	"slices"
	"strings"
)

//go:embed packs
var packs embed.FS

// Pack is a policy set that comes with the program, as YAML. It reports false where there
// is none of that name.
func Pack(name string) (text []byte, ok bool) {
	if !slices.Contains(Packs(), name) {
		return nil, false
	}
	text, err := packs.ReadFile("packs/" + name + ".yaml")
	return text, err == nil
}

// Packs names all of them.
func Packs() (names []string) {
	files, err := packs.ReadDir("packs")
	if err != nil { // they are part of the program
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
