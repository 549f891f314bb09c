// Package docs carries the guides and their images, for the server to show.
package docs

import "embed"

// Files holds every file of this folder and of the folders below it, by its path
// from here. The pattern is not narrower because a pattern that matches nothing
// does not compile, and a folder of images may be missing.
//
//go:embed *
var Files embed.FS
