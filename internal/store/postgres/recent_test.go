package postgres

import "testing"

func TestRecent(t *testing.T) {
	t.Parallel()
	const each, room = 1000, 10
	r := newRecent[int, int](2 * room * (each + entryOverhead))
	r.put(-1, -1, each)
	for i := range 10 * room {
		if known, ok := r.get(-1); !ok || known != -1 {
			t.Fatalf("what is used over and over is forgotten after %d others", i)
		}
		r.put(-1, -1, each)
		r.put(i, i, each)
		if value, ok := r.get(i); !ok || value != i {
			t.Fatalf("%d is %d, %t", i, value, ok)
		}
		if kept := len(r.newer) + len(r.older); kept > 2*room+2 {
			t.Fatalf("%d entries are kept, want at most %d", kept, 2*room+2)
		}
	}
	if _, ok := r.get(0); ok {
		t.Error("what was used last long ago is kept")
	}
	r.drop(-1)
	if _, ok := r.get(-1); ok {
		t.Error("what was dropped is kept")
	}
}
