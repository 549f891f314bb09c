package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"

	"github.com/mattn/go-isatty"
)

// progress is a bar on a terminal, and nothing anywhere else.
type progress struct {
	w     io.Writer // nil: not a terminal
	label string
	mu    sync.Mutex
	shown string
}

func newProgress(w io.Writer, label string) *progress {
	if !isTerminal(w) {
		return &progress{}
	}
	return &progress{w: w, label: label}
}

// isTerminal says whether a person is at the other end of a stream.
func isTerminal(stream any) bool {
	file, ok := stream.(*os.File)
	return ok && isatty.IsTerminal(file.Fd())
}

const barWidth = 30

func bar(label string, done, total int64) string {
	filled := 0
	if total > 0 {
		filled = int(min(done, total) * barWidth / total)
	}
	return fmt.Sprintf("%s [%s%s] %d/%d", label, strings.Repeat("#", filled), strings.Repeat(".", barWidth-filled), done, total)
}

// show redraws the bar. It may be called from several goroutines.
func (p *progress) show(done, total int64) {
	if p.w == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if line := bar(p.label, done, total); line != p.shown {
		p.shown = line
		fmt.Fprint(p.w, "\r\x1b[K"+line)
	}
}

// clear leaves the terminal's line as it was.
func (p *progress) clear() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.shown != "" {
		fmt.Fprint(p.w, "\r\x1b[K")
	}
}
