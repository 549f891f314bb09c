package storetest

import (
	"bytes"
	"errors"
	"reflect"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/google/uuid"

	"countersign/internal/ledger"
)

// comparison treats nil and empty as equal, unless a case says otherwise, and compares bytes as a
// whole, which is much faster than one by one.
var comparison = cmp.Options{
	cmp.Comparer(bytes.Equal),
	cmp.Comparer(func(a, b uuid.UUID) bool { return a == b }),
	cmp.Comparer(func(a, b [32]byte) bool { return a == b }),
	cmpopts.IgnoreUnexported(ledger.ActLog{}),
	cmp.Comparer(func(a, b ledger.Money) bool { return a.Cmp(b) == 0 }),
	cmp.FilterPath(func(path cmp.Path) bool { return path.Last().Type() != reflect.TypeFor[[]byte]() }, cmpopts.EquateEmpty()),
}

func assertEqual[T any](t *testing.T, what string, got, want T) {
	t.Helper()
	if diff := cmp.Diff(want, got, comparison); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

func wantError(t *testing.T, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: error %v, want %v", what, err, want)
	}
}

// must is for steps that the case is not about.
func must[T any](t *testing.T) func(T, error) T {
	t.Helper()
	return func(value T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatalf("unexpected error: %v", err)
		}
		return value
	}
}
