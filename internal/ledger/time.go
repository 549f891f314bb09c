package ledger

import (
	"errors"
	"math"
	"time"
)

// Time is an instant, in milliseconds since 1970 UTC. That is the precision outside the service, so
// that the stored, signed and shown times are the same. Spans are of type time.Duration.
type Time int64

// TimeOf converts a time of the standard library and drops fractions of a millisecond.
func TimeOf(t time.Time) Time { return Time(t.UnixMilli()) }

// Std converts to the standard library's time, in UTC.
func (t Time) Std() time.Time { return time.UnixMilli(int64(t)).UTC() }

// Add returns t+d. Fractions of a millisecond in d are dropped.
func (t Time) Add(d time.Duration) Time { return t + Time(d.Milliseconds()) }

// Sub returns t-u, or the closest Duration if the difference does not fit.
func (t Time) Sub(u Time) time.Duration { return Milliseconds(int64(t - u)) }

// Truncate returns the start of the period of length d that t is in, counted from 1970.
func (t Time) Truncate(d time.Duration) Time { return t - t%Time(d.Milliseconds()) }

// Period returns the number of the period of length d that t is in, counted from 1970.
func (t Time) Period(d time.Duration) int64 { return int64(t) / d.Milliseconds() }

// Milliseconds returns a span of n milliseconds, or the closest Duration if it does not fit: a
// stored number that was changed must not wrap around to the original.
func Milliseconds(n int64) time.Duration {
	const most = int64(math.MaxInt64 / time.Millisecond)
	switch {
	case n > most:
		return math.MaxInt64
	case n < -most:
		return math.MinInt64
	}
	return time.Duration(n) * time.Millisecond
}

// Year returns the UTC year.
func (t Time) Year() int { return t.Std().Year() }

// String returns the time in RFC 3339, in UTC with milliseconds and Z.
func (t Time) String() string { return string(t.AppendTo(nil)) }

// AppendTo appends the result of String. A receipt has a dozen times, and formatting one with a layout
// takes five times as long.
func (t Time) AppendTo(dst []byte) []byte {
	std := t.Std()
	year, month, day := std.Date()
	if year < 0 || year > 9999 {
		return std.AppendFormat(dst, timeLayout)
	}
	hour, minute, second := std.Clock()
	dst = append(appendTwoDigits(appendTwoDigits(dst, year/100), year%100), '-')
	dst = append(appendTwoDigits(dst, int(month)), '-')
	dst = append(appendTwoDigits(dst, day), 'T')
	dst = append(appendTwoDigits(dst, hour), ':')
	dst = append(appendTwoDigits(dst, minute), ':')
	dst = append(appendTwoDigits(dst, second), '.')
	milliseconds := std.Nanosecond() / int(time.Millisecond)
	dst = append(dst, digits[milliseconds/100])
	return append(appendTwoDigits(dst, milliseconds%100), 'Z')
}

const digits = "0123456789"

func appendTwoDigits(dst []byte, n int) []byte { return append(dst, digits[n/10], digits[n%10]) }

const timeLayout = "2006-01-02T15:04:05.000Z"

// The range of timestamps from outside: four-digit years, so that texts sort like their times.
var (
	earliestTime = TimeOf(time.Date(1970, 1, 1, 0, 0, 0, 0, time.UTC))
	latestTime   = TimeOf(time.Date(9999, 12, 31, 23, 59, 59, 999_000_000, time.UTC))
)

// ErrMalformedTime says that a text is not a valid timestamp.
var ErrMalformedTime = errors.New("not an RFC 3339 timestamp between 1970 and 9999")

// ParseTime parses an RFC 3339 timestamp in any zone.
func ParseTime(text string) (Time, error) {
	// time.Parse would also accept a one-digit hour, and a comma instead of the point.
	if len(text) < len("2006-01-02T15:04:05Z") || len(text) > 40 || text[13] != ':' || text[19] == ',' {
		return 0, ErrMalformedTime
	}
	parsed, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return 0, ErrMalformedTime
	}
	t := TimeOf(parsed)
	if t < earliestTime || t > latestTime {
		return 0, ErrMalformedTime
	}
	return t, nil
}

// Later returns the later of two times. Server time passes through it, so that a clock that jumps
// back never makes an end precede its start.
func Later(a, b Time) Time {
	return max(a, b)
}
