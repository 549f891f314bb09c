package service

import (
	"testing"
	"testing/synctest"
	"time"
)

// Whoever evaluates for longer than a stretch pauses, and whoever does not is not held up.
func TestLongEvaluationsPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p pacer
		run := func(steps int, each time.Duration) (paused time.Duration) {
			for range steps {
				time.Sleep(each)
				before := time.Now()
				p.step()
				paused += time.Since(before)
			}
			return paused
		}
		if paused := run(1024, 0); paused != 0 {
			t.Errorf("a thousand fast steps were held up for %v", paused)
		}
		if paused := run(160, stretch/stepsToClock); paused != 10*breather {
			t.Errorf("ten stretches were held up for %v, want %v", paused, 10*breather)
		}
	})
}
