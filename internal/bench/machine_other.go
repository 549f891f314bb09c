//go:build !linux

package bench

import (
	"os"
	"os/exec"
	"runtime"
	"time"
)

// cores stands in for what only Linux offers: pinning processes to cores.
type cores struct {
	all          []int
	server, load int
}

func availableCores() cores { return cores{all: make([]int, runtime.NumCPU())} }

func (cores) describe() string { return "nothing is pinned: this system cannot" }
func (cores) pinSelf()         {}
func (cores) unpinSelf()       {}

func (cores) start(cmd *exec.Cmd, _ int) error { return cmd.Start() }

func processorTime(int) time.Duration { return 0 }
func familyTime(int) time.Duration    { return 0 }
func parentOf(int, string) int        { return 0 }
func idleTimes(int) idle              { return idle{} }
func memoryOf(int) (now, peak int64)  { return 0, 0 }
func inMemory(string) bool            { return false }
func syncData(file *os.File) error    { return file.Sync() }
