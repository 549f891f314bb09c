package demo

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"countersign/internal/cli"
)

// stage prints the demo: in colour and at a reader's pace on a terminal, plainly and without pauses
// otherwise.
type stage struct {
	ctx     context.Context //nolint:containedctx // the process's own: it ends a pause
	out     io.Writer
	colours bool
	pace    time.Duration
	chapter int
}

const readersPace = 900 * time.Millisecond

func newStage(p *cli.Process, hurried bool) *stage {
	s := &stage{ctx: p.Ctx, out: p.Out}
	if cli.IsTerminal(p.Out) {
		s.colours = os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
		if !hurried {
			s.pace = readersPace
		}
	}
	return s
}

// Terminal colours.
const (
	bold   = "1"
	faint  = "2"
	red    = "31"
	green  = "32"
	yellow = "33"
	cyan   = "36"
)

func (s *stage) paint(colour, text string) string {
	if !s.colours {
		return text
	}
	return "\x1b[" + colour + "m" + text + "\x1b[0m"
}

// begin starts a chapter.
func (s *stage) begin(title string) {
	s.chapter++
	s.beat(2)
	fmt.Fprintf(s.out, "\n%s\n", s.paint(bold, fmt.Sprintf("%d  %s", s.chapter, title)))
	s.beat(1)
}

// tell prints a sentence.
func (s *stage) tell(format string, args ...any) {
	fmt.Fprintf(s.out, "   %s\n", s.paint(faint, fmt.Sprintf(format, args...)))
	s.beat(1)
}

// show prints something that happened, with a coloured mark.
func (s *stage) show(colour, mark, format string, args ...any) {
	fmt.Fprintf(s.out, "   %s %s\n", s.paint(colour, mark), fmt.Sprintf(format, args...))
	s.beat(1)
}

// quote prints several lines unchanged.
func (s *stage) quote(text string) {
	for line := range strings.Lines(text) {
		fmt.Fprintf(s.out, "     %s", line)
	}
	s.beat(2)
}

// beat pauses to let the reader catch up.
func (s *stage) beat(count int) {
	if s.pace == 0 {
		return
	}
	select {
	case <-time.After(time.Duration(count) * s.pace):
	case <-s.ctx.Done():
	}
}
