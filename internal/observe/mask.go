package observe

import "regexp"

const masked = "<redacted>"

// sensitive matches what must not appear in a log: bearer tokens by their prefixes, prefixed
// hashes, signatures and secrets of webhooks, identifiers, and runs of hexadecimal digits that are
// long enough to be a hash or an id without hyphens. Request ids are shorter and do not match.
var sensitive = regexp.MustCompile(`(?i)` +
	`(csk_|cvt_|cvs_|csl_|css_)[0-9a-z]{4,}` +
	`|(hmac-sha256:|sha256:|whsec_)[0-9a-z+/=_-]+` +
	`|[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}` +
	`|[0-9a-f]{32,}`)

// Mask replaces everything that looks like a secret, an id or a hash. It keeps the prefix of a
// token or a hash, so that the line still shows what was masked.
func Mask(text string) string {
	return sensitive.ReplaceAllString(text, "${1}${2}"+masked)
}
