package cli

import (
	"bufio"
	"context"
	"countersign/internal/observe"
	"errors"
	"fmt"
	"io"
	"strings"
)

// Process is what a command uses of the operating system. Tests fill it to run commands
// inside their own process.
type Process struct {
	Ctx       context.Context
	In        io.Reader
	Out, Err  io.Writer
	Version   string // of this program
	Databases Databases
}

// Exit statuses besides 0.
const (
	ExitFailed = 1
	// ExitInconclusive is for wrong usage and for data that could not be read: in both
	// cases the command established nothing.
	ExitInconclusive = 2
)

// ExitError ends the program with a certain exit status. If Err is nil, it has no text: the command has
// already printed its result.
type ExitError struct {
	Code int
	Err  error
}

func (e *ExitError) Error() string {
	if e.Err == nil {
		return ""
	}
	return e.Err.Error()
}

func (e *ExitError) Unwrap() error { return e.Err }

// Inconclusive makes err end the program with ExitInconclusive.
func Inconclusive(err error) error {
	if err == nil {
		return nil
	}
	return &ExitError{ExitInconclusive, err}
}

// UsageError is an error in the command line. It is printed with the help page to read.
type UsageError struct{ error }

func (e *UsageError) Unwrap() error { return e.error }

// Usage marks err as an error in the command line.
func Usage(err error) error {
	if err == nil {
		return nil
	}
	return &UsageError{err}
}

// Report prints an error and returns the exit status. Standard error often ends up with
// the log, so secrets are masked as they are there.
func Report(w io.Writer, err error) int {
	if err == nil {
		return 0
	}
	code := ExitFailed
	var exit *ExitError
	if errors.As(err, &exit) {
		code = exit.Code
	}
	// All of it: what a command could not print or close may be joined to its own error.
	if text := strings.TrimSpace(err.Error()); text != "" {
		fmt.Fprintln(w, "countersign:", observe.Mask(text))
	}
	return code
}

var errNotAsked = errors.New("cannot ask for confirmation: standard input is not a terminal; pass --yes to skip the question")

// Confirm asks a yes-or-no question on the terminal.
func (p *Process) Confirm(question string) error {
	if !IsTerminal(p.In) {
		return Inconclusive(errNotAsked)
	}
	if !Ask(p.In, p.Err, question) {
		return errors.New("cancelled: nothing was changed")
	}
	return nil
}

// Ask returns whether the answer is yes. Anything but y or yes means no.
func Ask(in io.Reader, out io.Writer, question string) bool {
	fmt.Fprintf(out, "%s [y/N] ", question)
	answer, err := bufio.NewReader(io.LimitReader(in, 100)).ReadString('\n')
	answer = strings.ToLower(strings.TrimSpace(answer))
	return err == nil && (answer == "y" || answer == "yes")
}
