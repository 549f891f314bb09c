package bench

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// cores are the processors that this process may use, and which of them the
// server and the load generator get.
type cores struct {
	all          []int
	server, load int
	threads      int // GOMAXPROCS before pinning
}

func availableCores() cores {
	c := cores{threads: runtime.GOMAXPROCS(0)}
	var set unix.CPUSet
	if unix.SchedGetaffinity(0, &set) == nil {
		for cpu := range len(set) * 64 {
			if set.IsSet(cpu) {
				c.all = append(c.all, cpu)
			}
		}
	}
	if len(c.all) > 0 {
		c.server, c.load = c.all[0], c.all[len(c.all)-1]
	}
	return c
}

func (c cores) describe() string {
	return fmt.Sprintf("server pinned to core %d, load generator to core %d; PostgreSQL's processes are not pinned", c.server, c.load)
}

func setOf(cpus ...int) *unix.CPUSet {
	var set unix.CPUSet
	for _, cpu := range cpus {
		set.Set(cpu)
	}
	return &set
}

// pinSelf gives this process the load generator's core.
func (c cores) pinSelf() {
	c.moveThreads(setOf(c.load))
	runtime.GOMAXPROCS(1)
}

// unpinSelf gives this process all its cores back.
func (c cores) unpinSelf() {
	c.moveThreads(setOf(c.all...))
	runtime.GOMAXPROCS(c.threads)
}

// moveThreads moves every thread. A thread born meanwhile may have the old
// cores from its parent, so it looks until it finds none that it has not moved.
func (c cores) moveThreads(set *unix.CPUSet) {
	moved := make(map[int]bool)
	for again := true; again; {
		again = false
		tasks, _ := filepath.Glob("/proc/self/task/*") // the pattern is sound
		for _, task := range tasks {
			id, err := strconv.Atoi(filepath.Base(task))
			if err != nil || moved[id] {
				continue
			}
			_ = unix.SchedSetaffinity(id, set) // a thread that has ended needs no core
			moved[id], again = true, true
		}
	}
}

// start starts a process on one core. It inherits the affinity of the thread
// that starts it, and dies with this process however that ends.
func (c cores) start(cmd *exec.Cmd, cpu int) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var before unix.CPUSet
	if err := unix.SchedGetaffinity(0, &before); err != nil {
		return fmt.Errorf("read affinity: %w", err)
	}
	if err := unix.SchedSetaffinity(0, setOf(cpu)); err != nil {
		return fmt.Errorf("pin to core %d: %w", cpu, err)
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	startErr := cmd.Start()
	if err := unix.SchedSetaffinity(0, &before); err != nil {
		return fmt.Errorf("restore affinity: %w", err)
	}
	return startErr
}

// The fields of /proc/PID/stat that are read here, counted from the one after the
// process's name.
const (
	statParent  = 1
	statUser    = 11 // utime, stime, and both of the children that were waited for
	statFields  = 15
	statOwn     = 2 // of the four times
	statFamily  = 4
	statIdle    = 4 // of a line of /proc/stat: idle, iowait
	statIdleEnd = 6
)

// statOf reads what the kernel says about a process; nil when there is none.
func statOf(pid int) []string {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return nil
	}
	// The name in parentheses may hold spaces; what follows does not.
	_, rest, _ := strings.Cut(string(stat), ") ")
	fields := strings.Fields(rest)
	if len(fields) < statFields {
		return nil
	}
	return fields
}

func sumOfTicks(fields []string) time.Duration {
	const ticksPerSecond = 100 // fixed in what Linux shows to programs
	var sum int64
	for _, field := range fields {
		ticks, _ := strconv.ParseInt(field, 10, 64)
		sum += ticks
	}
	return time.Duration(sum) * time.Second / ticksPerSecond
}

// processorTime is what a process has used so far, to the nanosecond; 0 when it cannot be told.
func processorTime(pid int) time.Duration {
	const processClock = 2 // CPUCLOCK_SCHED: in the kernel's encoding of another process's clock
	var used unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|processClock), &used); err != nil { //nolint:gosec // process ids are small
		return 0
	}
	return time.Duration(used.Nano())
}

// familyTime is what a process has used so far, its children, and those that have
// ended.
func familyTime(pid int) time.Duration {
	stat := statOf(pid)
	if stat == nil {
		return 0
	}
	total := sumOfTicks(stat[statUser : statUser+statFamily])
	children, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid)) // a process that has ended has none
	for _, child := range strings.Fields(string(children)) {
		if id, err := strconv.Atoi(child); err == nil {
			total += processorTime(id)
		}
	}
	return total
}

// parentOf is the parent of a process whose command line holds a text; 0 where there
// is no such process.
func parentOf(pid int, text string) int {
	command, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	stat := statOf(pid)
	if err != nil || stat == nil || !strings.Contains(string(command), text) {
		return 0
	}
	parent, _ := strconv.Atoi(stat[statParent])
	return parent
}

// idleTimes is how long one core and all of them were idle since the machine began.
func idleTimes(core int) idle {
	stat, err := os.ReadFile("/proc/stat")
	if err != nil {
		return idle{}
	}
	var found idle
	for line := range strings.Lines(string(stat)) {
		fields := strings.Fields(line)
		number, isCore := strings.CutPrefix(fields[0], "cpu")
		if !isCore || number == "" || len(fields) < statIdleEnd {
			continue
		}
		idled := sumOfTicks(fields[statIdle:statIdleEnd])
		if number == strconv.Itoa(core) {
			found.server = idled
		}
		found.all += idled
		found.count++
	}
	return found
}

// memoryOf is a process's resident memory now and at its highest, in bytes.
func memoryOf(pid int) (now, peak int64) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, 0
	}
	for line := range strings.Lines(string(status)) {
		name, value, _ := strings.Cut(line, ":")
		kilobytes, _ := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64)
		switch name {
		case "VmRSS":
			now = kilobytes << 10
		case "VmHWM":
			peak = kilobytes << 10
		}
	}
	return now, peak
}

func inMemory(dir string) bool {
	var fs unix.Statfs_t
	return unix.Statfs(dir, &fs) == nil && (fs.Type == unix.TMPFS_MAGIC || fs.Type == unix.RAMFS_MAGIC)
}

func syncData(file *os.File) error { return unix.Fdatasync(int(file.Fd())) }
