package observe

import (
	"context"
	"fmt"
	"io"
	"log/slog"
)

// The formats of a log.
const (
	FormatJSON = "json"
	FormatText = "text"
)

// NewLogger returns a logger for records of the given level and above. It masks everything that
// looks like a secret.
func NewLogger(w io.Writer, format string, level slog.Leveler) *slog.Logger {
	options := &slog.HandlerOptions{Level: level}
	if format == FormatText {
		return slog.New(Guard(slog.NewTextHandler(w, options)))
	}
	return slog.New(Guard(slog.NewJSONHandler(w, options)))
}

// Guard returns a handler that masks every record before next handles it. It is the last line
// of defense: callers must not log secrets in the first place.
func Guard(next slog.Handler) slog.Handler { return guard{next} }

type guard struct{ next slog.Handler }

func (g guard) Enabled(ctx context.Context, level slog.Level) bool { return g.next.Enabled(ctx, level) }

func (g guard) Handle(ctx context.Context, record slog.Record) error {
	safe := slog.NewRecord(record.Time, record.Level, Mask(record.Message), record.PC)
	record.Attrs(func(attr slog.Attr) bool {
		safe.AddAttrs(maskAttr(attr))
		return true
	})
	return g.next.Handle(ctx, safe)
}

func (g guard) WithAttrs(attrs []slog.Attr) slog.Handler {
	return guard{g.next.WithAttrs(maskAll(attrs))}
}

func (g guard) WithGroup(name string) slog.Handler { return guard{g.next.WithGroup(Mask(name))} }

func maskAll(attrs []slog.Attr) []slog.Attr {
	safe := make([]slog.Attr, len(attrs))
	for i, attr := range attrs {
		safe[i] = maskAttr(attr)
	}
	return safe
}

func maskAttr(attr slog.Attr) slog.Attr {
	return slog.Attr{Key: Mask(attr.Key), Value: maskValue(attr.Value.Resolve())}
}

func maskValue(value slog.Value) slog.Value {
	switch value.Kind() {
	case slog.KindString:
		return slog.StringValue(Mask(value.String()))
	case slog.KindGroup:
		return slog.GroupValue(maskAll(value.Group())...)
	case slog.KindAny:
		return maskAny(value.Any())
	default: // numbers, times and booleans reveal nothing
		return value
	}
}

// maskAny replaces a value by its masked text: what a handler would make of the value's fields
// could not be masked.
func maskAny(value any) slog.Value {
	switch value := value.(type) {
	case nil:
		return slog.AnyValue(nil)
	case *slog.Source:
		return slog.AnyValue(value)
	case error:
		return slog.StringValue(Mask(fmt.Sprint(value))) // which survives a nil pointer
	default:
		return maskFormatted(value)
	}
}
