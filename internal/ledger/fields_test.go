package ledger

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"countersign/internal/canon"
	"countersign/internal/fault"
)

func parse(t testing.TB, text string) canon.Value {
	t.Helper()
	v, err := canon.Parse([]byte(text))
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return v
}

// faultsOf lists an error's faults as "pointer: detail". It returns nil for no error.
func faultsOf(t testing.TB, err error) []string {
	t.Helper()
	if err == nil {
		return nil
	}
	var own *fault.Error
	if !errors.As(err, &own) || own.Code != fault.CodeInvalid || len(own.Fields) == 0 {
		t.Fatalf("error %v, want one of code %s with its fields", err, fault.CodeInvalid)
	}
	var faults []string
	for _, field := range own.Fields {
		faults = append(faults, field.Pointer+": "+field.Detail)
	}
	return faults
}

// A timestamp is optional, and an invalid one is a fault of its member.
func TestTimesOfFields(t *testing.T) {
	t.Parallel()
	at := Time(1_772_600_767_000)
	for body, c := range map[string]struct {
		want   *Time
		faults []string
	}{
		`{"x":"2026-03-04T05:06:07Z"}`: {want: &at},
		`{}`:                           {},
		`{"x":"2026-03-04"}`:           {faults: []string{"/x: must be an RFC 3339 timestamp between 1970 and 9999"}},
	} {
		f := canon.NewFields(parse(t, body))
		if diff := cmp.Diff(c.want, ReadTime(f, "x")); diff != "" {
			t.Errorf("%s: time (-want +got):\n%s", body, diff)
		}
		if diff := cmp.Diff(c.faults, faultsOf(t, f.Err())); diff != "" {
			t.Errorf("%s: faults (-want +got):\n%s", body, diff)
		}
	}
}
