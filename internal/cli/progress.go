package cli

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"

	"github.com/mattn/go-isatty"
)

// Progress is a progress bar. It is drawn only on a terminal.
type Progress struct {
	w     io.Writer // nil: not a terminal
	label string
	mu    sync.Mutex
	shown string
}

// NewProgress returns a progress bar on w.
func NewProgress(w io.Writer, label string) *Progress {
	if !IsTerminal(w) {
		return &Progress{}
	}
	return &Progress{w: w, label: label}
}

// IsTerminal reports whether a stream is a terminal.
func IsTerminal(stream any) bool {
	if output, ok := stream.(*Output); ok {
		stream = output.Writer
	}
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

// Show redraws the bar. It may be called from several goroutines.
func (p *Progress) Show(done, total int64) {
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

// Clear removes the bar from the terminal.
func (p *Progress) Clear() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.shown != "" {
		fmt.Fprint(p.w, "\r\x1b[K")
	}
}
