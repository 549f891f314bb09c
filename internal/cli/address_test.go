package cli

import "testing"

// The URL of a server is one to which a path can be added.
func TestParseBaseURL(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"https://host":        "https://host",
		"http://[::1]:8080/":  "http://[::1]:8080",
		"https://host/below/": "https://host/below",
		"host":                "",
		"ftp://host":          "",
		"https://":            "",
		"https://u:p@host":    "",
		"https://host?a=b":    "",
		"https://host?":       "",
		"https://host#top":    "",
		"https://host/#":      "",
	} {
		if got, err := ParseBaseURL("--url", text); got != want || (err == nil) != (want != "") {
			t.Errorf("%s: got %q, %v, want %q", text, got, err, want)
		}
	}
}
