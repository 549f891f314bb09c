// Package notify makes one attempt to deliver one notification and says whether to retry: as a
// webhook in the format of Standard Webhooks, or as an e-mail.
//
// It has no state. The queue, the number of attempts and the clock belong to the caller, who uses
// Permanent, EndpointGone and RetryAfter for an error and Backoff for the next attempt. Delivery is
// at least once: an attempt whose answer was lost is repeated with the same message id, so that the
// receiver can recognize it.
//
// Error texts consist of fixed words and numbers. They never contain what a peer answered or parts
// of a URL.
package notify

import (
	"errors"
	"regexp"
	"strings"
	"unicode"
)

var messageIDForm = regexp.MustCompile(`^[A-Za-z0-9_-]{1,100}$`)

// checkMessageID makes sure that the id is harmless in an HTTP header, in a Message-ID and between
// the full stops of a signed text.
func checkMessageID(id string) error {
	if !messageIDForm.MatchString(id) {
		return errors.New("a message id must be 1 to 100 letters, digits, hyphens and underscores")
	}
	return nil
}

// oneLine makes a name safe to show in one line of at most limit characters: without control
// characters, and without those that reverse or hide adjacent text.
func oneLine(name string, limit int) string {
	name = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) || unicode.In(r, unicode.Zl, unicode.Zp) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(name, "\uFFFD"))
	name = strings.Join(strings.Fields(name), " ")
	if limit == 0 {
		return ""
	}
	if runes := []rune(name); len(runes) > limit {
		return strings.TrimSpace(string(runes[:limit-1])) + "…"
	}
	return name
}
