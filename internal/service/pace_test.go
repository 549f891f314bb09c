package service

import (
	"testing"
	"testing/synctest"
	"time"
)

// An evaluation longer than a slice pauses, and a shorter one is not delayed.
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
		if paused := run(160, evaluationSlice/stepsPerClock); paused != 10*evaluationPause {
			t.Errorf("ten slices were delayed by %v, want %v", paused, 10*evaluationPause)
		}
	})
}
