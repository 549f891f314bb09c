package service

import (
	"testing"

	"github.com/google/uuid"
)

// A signal wakes the callers that wait for its approval, or with its key, and no others. Nothing
// is kept in memory once its waiters have left.
func TestWaiters(t *testing.T) {
	t.Parallel()
	var w waiters
	one, other, key := uuid.UUID{1}, uuid.UUID{2}, uuid.UUID{3}
	first, leaveFirst := w.add(one)
	second, leaveSecond := w.add(one, key)
	third, leaveThird := w.add(other, key)
	woken := func() (list [3]bool) {
		for i, c := range []<-chan struct{}{first, second, third} {
			select {
			case <-c:
				list[i] = true
			default:
			}
		}
		return list
	}
	for _, c := range []struct {
		name string
		wake func()
		want [3]bool
	}{
		{"nobody", func() {}, [3]bool{}},
		{"one approval's", func() { w.wake(one) }, [3]bool{true, true, false}},
		{"twice before anyone looks", func() { w.wake(other); w.wake(other) }, [3]bool{false, false, true}},
		{"one key's", func() { w.wake(key) }, [3]bool{false, true, true}},
		{"all", w.wakeAll, [3]bool{true, true, true}},
		{"a stranger's", func() { w.wake(uuid.UUID{}) }, [3]bool{}},
		{"after one has left", func() { leaveFirst(); w.wakeAll() }, [3]bool{false, true, true}},
	} {
		c.wake()
		if got := woken(); got != c.want {
			t.Errorf("%s: woken %v, want %v", c.name, got, c.want)
		}
	}
	leaveSecond()
	leaveThird()
	leaveThird()
	if len(w.waiting) != 0 {
		t.Errorf("%d approvals and keys are remembered that nobody waits for", len(w.waiting))
	}
}
