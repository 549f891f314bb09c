package anchor

import (
	"testing"
	"time"

	"golang.org/x/crypto/cryptobyte"
)

// An accuracy is read whichever of its parts it has, in their order, and also with a number that RFC 3161
// does not allow but that means something. One that means nothing is refused.
func TestReadAccuracy(t *testing.T) {
	t.Parallel()
	for der, want := range map[string]time.Duration{
		"":                                     0,
		"\x02\x01\x02":                         2 * time.Second,
		"\x80\x01\x07":                         7 * time.Millisecond,
		"\x81\x01\x07":                         7 * time.Microsecond,
		"\x80\x01\x00":                         0,
		"\x80\x02\x03\xe8":                     time.Second,
		"\x02\x01\x01\x80\x01\x02\x81\x01\x03": time.Second + 2*time.Millisecond + 3*time.Microsecond,
	} {
		if got, ok := readAccuracy(cryptobyte.String(der)); got != want || !ok {
			t.Errorf("%x: %v, %v, want %v", der, got, ok, want)
		}
	}
	for _, der := range []string{
		"\x02\x01\xff", "\x80\x01\xff", "\x02\x00", "\x02", "\x80\x01\x01\x02\x01\x01", "\x02\x01\x01\x02\x01\x01", "\x82\x01\x01",
		"\x02\x08\x7f\xff\xff\xff\xff\xff\xff\xff", "\x02\x09\x00\xff\xff\xff\xff\xff\xff\xff\xff",
	} {
		if got, ok := readAccuracy(cryptobyte.String(der)); ok {
			t.Errorf("%x is read as %v", der, got)
		}
	}
}
