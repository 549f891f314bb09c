package review

import (
	"testing"
	"time"
)

// Durations are shown in a short form.
func TestSpanText(t *testing.T) {
	t.Parallel()
	for span, want := range map[time.Duration]string{
		-time.Second: "none", 59 * time.Second: "59s", time.Hour - 1: "59m", 90 * time.Minute: "1h30m", 47*time.Hour + 59*time.Minute: "47h59m", 72 * time.Hour: "3d",
	} {
		if got := spanText(span); got != want {
			t.Errorf("%s is shown as %q, want %q", span, got, want)
		}
	}
}
