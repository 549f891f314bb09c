package cli

import "testing"

// The token is sent only over https, except to this machine.
func TestSlackURLs(t *testing.T) {
	t.Parallel()
	for given, want := range map[string]string{
		"https://slack.com/api/": "https://slack.com/api/", "https://proxy.example.com/slack": "https://proxy.example.com/slack/",
		"http://127.0.0.1:8080/api": "http://127.0.0.1:8080/api/", "http://[::1]/": "http://[::1]/", "http://localhost": "http://localhost/",
		"http://slack.com/api/": "", "http://127.0.0.1.example.com/": "", "ftp://127.0.0.1/": "", "slack.com": "", "": "", "https://": "",
		"https://user:secret@slack.com/": "", "https://slack.com/?a=b": "", "https://slack.com/api?": "", "https://slack.com/#a": "",
	} {
		got, err := slackURL(given)
		if got != want || (err != nil) != (want == "") {
			t.Errorf("%q becomes %q, %v", given, got, err)
		}
	}
}
