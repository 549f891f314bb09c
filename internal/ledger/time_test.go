package ledger

import (
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// Times are written in UTC with milliseconds and read back as the same moment.
func TestTimeIsWrittenInUTCWithMilliseconds(t *testing.T) {
	t.Parallel()
	zone := time.FixedZone("east", 5*60*60+30*60)
	cases := map[string]time.Time{
		"1970-01-01T00:00:00.000Z": time.Unix(0, 0),
		"2026-03-04T05:06:07.089Z": time.Date(2026, 3, 4, 10, 36, 7, 89_999_999, zone),
		"9999-12-31T23:59:59.999Z": time.Date(9999, 12, 31, 23, 59, 59, 999_999_999, time.UTC),
	}
	for want, moment := range cases {
		if got := TimeOf(moment).String(); got != want {
			t.Errorf("%v is written %s, want %s", moment, got, want)
		}
		if back, err := ParseTime(want); err != nil || back != TimeOf(moment) {
			t.Errorf("%s is read as %v, %v", want, back, err)
		}
	}
	if got := TimeOf(time.Date(2027, 1, 1, 0, 30, 0, 0, zone)).Year(); got != 2026 {
		t.Errorf("year %d, want that of UTC, 2026", got)
	}
}

// Every time is written as the standard library writes it, whatever year a stored number stands for.
func TestTimeIsWrittenLikeTheStandardLibrary(t *testing.T) {
	t.Parallel()
	moments := rapid.OneOf(rapid.Int64(), rapid.Int64Range(int64(earliestTime), int64(latestTime)), rapid.Int64Range(-62_167_219_200_000-5, -62_167_219_200_000+5))
	rapid.Check(t, func(t *rapid.T) {
		moment := Time(moments.Draw(t, "milliseconds"))
		if got, want := moment.String(), moment.Std().Format("2006-01-02T15:04:05.000Z"); got != want {
			t.Errorf("%d is written %s, want %s", int64(moment), got, want)
		}
	})
}

// A time is accepted when it is an RFC 3339 timestamp between 1970 and 9999.
func TestParseTimeBounds(t *testing.T) {
	t.Parallel()
	cases := []struct {
		text, want string // "" for refused
	}{
		{"2026-03-04T05:06:07Z", "2026-03-04T05:06:07.000Z"},
		{"2026-03-04T05:06:07.123456789Z", "2026-03-04T05:06:07.123Z"},
		{"2026-03-04T00:30:00+01:00", "2026-03-03T23:30:00.000Z"},
		{"1970-01-01T00:00:00Z", "1970-01-01T00:00:00.000Z"},
		{"1969-12-31T23:59:59.999Z", ""},
		{"1970-01-01T00:00:00+01:00", ""},
		{"9999-12-31T23:59:59-01:00", ""},
		{"10000-01-01T00:00:00Z", ""},
		{"2026-02-30T00:00:00Z", ""},
		{"2026-03-04T24:00:00Z", ""},
		{"2026-03-04T5:06:07Z", ""},
		{"2026-03-04T05:06:07,5Z", ""},
		{"2026-03-04T05:06:07+25:00", ""},
		{"2026-03-04 05:06:07Z", ""},
		{"2026-03-04T05:06:07", ""},
		{"2026-03-04", ""},
		{"1772600767", ""},
		{"", ""},
		{"2026-03-04T05:06:07." + strings.Repeat("1", 40) + "Z", ""},
	}
	for _, c := range cases {
		got, err := ParseTime(c.text)
		switch {
		case c.want == "" && !errors.Is(err, ErrMalformedTime):
			t.Errorf("%s: read as %v, %v; want ErrMalformedTime", c.text, got, err)
		case c.want != "" && (err != nil || got.String() != c.want):
			t.Errorf("%s: read as %v, %v; want %s", c.text, got, err, c.want)
		}
	}
}

// Every time that is accepted is the one that the standard library reads, and is
// read back from its own text.
func FuzzParseTime(f *testing.F) {
	for _, seed := range []string{"", "2026-03-04T05:06:07.089Z", "1970-01-01T00:00:00-00:00", "9999-12-31T23:59:59.999Z", "2026-03-04t05:06:07z"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		parsed, err := ParseTime(text)
		if err != nil {
			return
		}
		written := parsed.String()
		if len(written) != len(timeLayout) {
			t.Fatalf("%q is written as %q", text, written)
		}
		if again, err := ParseTime(written); err != nil || again != parsed {
			t.Fatalf("%q is read back as %v, %v", written, again, err)
		}
		opinion, err := time.Parse(time.RFC3339, text)
		if err != nil || TimeOf(opinion) != parsed {
			t.Fatalf("%q is %v for the standard library, %v here", text, opinion, parsed)
		}
	})
}

// The later of two times does not depend on their order.
func TestLaterNeverGoesBack(t *testing.T) {
	t.Parallel()
	if Later(5, 3) != 5 || Later(3, 5) != 5 || Later(4, 4) != 4 {
		t.Error("Later is not the later one")
	}
}

// Spans are in whole milliseconds. Those that are too long for a Duration become the longest one,
// and never wrap around.
func TestSpans(t *testing.T) {
	t.Parallel()
	const longest = int64(math.MaxInt64 / time.Millisecond)
	for n, want := range map[int64]time.Duration{
		0: 0, 1: time.Millisecond, -1500: -1500 * time.Millisecond, longest: time.Duration(longest) * time.Millisecond,
		longest + 1: math.MaxInt64, math.MaxInt64: math.MaxInt64, 1<<58 + 1: math.MaxInt64, -longest - 1: math.MinInt64, math.MinInt64: math.MinInt64,
	} {
		if got := Milliseconds(n); got != want {
			t.Errorf("%d milliseconds are %d, want %d", n, got, want)
		}
	}
	at := Time(90_061_234) // a day, an hour, a minute and 1234 milliseconds
	if day := at.Truncate(24 * time.Hour); day != 86_400_000 || at.Sub(day) != time.Hour+time.Minute+1234*time.Millisecond {
		t.Errorf("the day begins at %d, %v before", day, at.Sub(day))
	}
	if day, hour := at.Period(24*time.Hour), at.Period(time.Hour); day != 1 || hour != 25 {
		t.Errorf("it is day %d and hour %d, want 1 and 25", day, hour)
	}
}
