package main

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"sync"

	"countersign/internal/cli"
	"countersign/internal/observe"
)

// version is set by release builds; other builds are named by their revision.
var version = ""

type buildInfo struct {
	Version  string `json:"version"`
	Revision string `json:"revision"`
	Time     string `json:"time"`
	Modified bool   `json:"modified"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

var currentBuild = sync.OnceValue(func() buildInfo {
	info := buildInfo{Version: version, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	built, ok := debug.ReadBuildInfo()
	if !ok {
		return info
	}
	if info.Version == "" {
		info.Version = built.Main.Version
	}
	for _, setting := range built.Settings {
		switch setting.Key {
		case "vcs.revision":
			info.Revision = setting.Value
		case "vcs.time":
			info.Time = setting.Value
		case "vcs.modified":
			info.Modified = setting.Value == "true"
		}
	}
	return info
})

func (b buildInfo) observed() observe.Build {
	return observe.Build{Version: b.Version, Revision: b.Revision, GoVersion: b.Go}
}

type versionCommand struct {
	JSON bool `name:"json" help:"Print JSON." env:"-"`
}

// Run shows the build.
func (c *versionCommand) Run(p *cli.Process) error {
	info := currentBuild()
	if c.JSON {
		return p.PrintJSON(info)
	}
	fmt.Fprintf(p.Out, "countersign %s (%s, %s)\n", info.Version, info.Go, info.Platform)
	return nil
}
