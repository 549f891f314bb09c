// Package notify delivers one notification, once, and says whether to try again:
// as a webhook in the format of Standard Webhooks, or as an e-mail.
//
// It keeps nothing. The queue, the number of attempts and the clock belong to the
// caller, who asks Permanent, Gone and RetryAfter about an error and Backoff for
// the next attempt. Delivery is at least once: an attempt whose answer was lost
// is made again under the same message id, and the receiver can tell.
//
// Error texts are made here, of fixed words and numbers. What a peer answered,
// and what a URL holds, never enters them.
package notify

import (
	"errors"
	"regexp"
	"strings"
	"unicode"
)

var messageIDForm = regexp.MustCompile(`^[A-Za-z0-9_-]{1,100}$`)

// checkMessageID keeps the id harmless in an HTTP header, in a Message-ID and
// between the full stops of a signed text.
func checkMessageID(id string) error {
	if !messageIDForm.MatchString(id) {
		return errors.New("a message id must be 1 to 100 letters, digits, hyphens and underscores")
	}
	return nil
}

// oneLine makes a name safe to show in one line of at most limit characters:
// without control characters, and without those that reverse or hide what
// stands beside them.
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
