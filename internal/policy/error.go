package policy

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"unicode/utf8"
)

// Error contains up to 50 problems of a document, in the order of the document.
type Error struct {
	Problems []Problem
}

// Problem is one reason to refuse a document.
type Problem struct {
	// Rule is the name of the rule or case, or its place if it has none ("rules[2]"). It is empty
	// for a problem of the whole document.
	Rule string
	// Line and Column count from 1, columns in characters. A problem inside a condition points into
	// the condition.
	Line, Column int
	// Detail says what is wrong and what to do.
	Detail string
}

func (p Problem) String() string {
	at := fmt.Sprintf("line %d, column %d: ", p.Line, p.Column)
	if p.Rule != "" {
		at += strconv.Quote(p.Rule) + ": "
	}
	return at + p.Detail
}

func (e *Error) Error() string {
	text := e.Problems[0].String()
	if more := len(e.Problems) - 1; more > 0 {
		text += fmt.Sprintf(" (and %d more)", more)
	}
	return text
}

// problems collects the problems of one document.
type problems struct {
	source *source
	list   []Problem
}

// report records a problem at a byte offset of the document. Problems beyond the limit are dropped:
// 50 are enough to start with.
func (p *problems) report(rule string, offset int, format string, args ...any) {
	if p.full() {
		return
	}
	line, column := p.source.position(offset)
	detail := cut(fmt.Sprintf(format, args...), maxDetail)
	p.list = append(p.list, Problem{Rule: rule, Line: line, Column: column, Detail: detail})
}

func (p *problems) full() bool { return len(p.list) >= maxProblems }

// err returns nil if there are no problems.
func (p *problems) err() error {
	if len(p.list) == 0 {
		return nil
	}
	slices.SortStableFunc(p.list, func(a, b Problem) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
	return &Error{Problems: p.list}
}

// cut shortens a text from outside to about limit bytes.
func cut(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	end := limit
	for !utf8.RuneStart(s[end]) {
		end--
	}
	return s[:end] + "…"
}
