package main

import (
	"context"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"countersign/internal/cli"
	"countersign/internal/servicetest"
)

// story is what the demo tells whatever the person says.
var story = []string{
	"pay_supplier             allow   480.00 USD",
	"pay_supplier             require_approval   9,200.00 USD",
	"delete_customer_records  deny   records-stay: customer records are kept for ten years",
	`"overall_status": "verified"`,
	"✓ default: intact; checked 1 receipt, 1 chain, 5 events, 7 acts in the audit log",
	"the payment of 9,200.00 USD becomes one of 1,200.00 USD",
	"✗ default: BROKEN at CSN-",
	"That was all: ",
}

// The demo tells its story to the end, whether the payment is approved or not, and
// leaves nothing behind.
func TestDemo(t *testing.T) {
	// It makes a temporary folder, and the test wants to see it gone.
	folder := t.TempDir()
	t.Setenv("TMPDIR", folder)
	for name, test := range map[string]struct {
		args  []string
		input string
		says  []string
	}{
		"approved for a script": {[]string{"demo", "--yes"}, "", []string{"yes (--yes)", "You approved it", "5 actions, 9,680.00 USD moved"}},
		"approved by a person":  {[]string{"demo"}, "y\n", []string{"Approve this? [y/N]", "You approved it", "5 actions, 9,680.00 USD moved"}},
		"refused by a person":   {[]string{"demo"}, "n\n", []string{"Approve this? [y/N]", "You said no", "5 actions, 480.00 USD moved"}},
		"nobody there":          {[]string{"demo"}, "", []string{"You said no", "5 actions, 480.00 USD moved"}},
	} {
		var out, errOutput servicetest.Buffer
		if code := run(t.Context(), test.args, strings.NewReader(test.input), &out, &errOutput); code != 0 {
			t.Errorf("%s: exit status %d\n%s%s", name, code, out.String(), errOutput.String())
		}
		checkStory(t, name, out.String(), append(test.says, story...))
		if errOutput.String() != "" {
			t.Errorf("%s: standard error says %s", name, errOutput.String())
		}
	}
	if left, err := filepath.Glob(filepath.Join(folder, "countersign-demo-*")); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

var publicLink = regexp.MustCompile(`→ http://127\.0\.0\.1:\d+/public/v2/verify/cvt_\w+\n`)

func checkStory(t *testing.T, name, text string, says []string) {
	t.Helper()
	for _, words := range says {
		if !strings.Contains(text, words) {
			t.Errorf("%s: it does not say %q:\n%s", name, words, text)
		}
	}
	if !publicLink.MatchString(text) {
		t.Errorf("%s: there is no public link:\n%s", name, text)
	}
	if strings.Contains(text, "\x1b") {
		t.Errorf("%s: there is colour where no terminal is", name)
	}
}

// A demo that serves leaves a console with something in it, and a link to it, until it is
// interrupted.
//
//countersign:race
func TestDemoThatServes(t *testing.T) {
	t.Parallel()
	p := begin(t, "demo", "--yes", "--serve")
	var link string
	servicetest.Eventually(t, "the link is shown", func() bool {
		link = signInPattern.FindString(p.out.String())
		return link != ""
	})
	base, _, _ := strings.Cut(link, "/sign-in")
	c := &client{base: base, http: servicetest.Client}
	if got := c.status(t, http.MethodGet, "/sign-in", ""); got != http.StatusOK {
		t.Errorf("the page of the link is answered %d", got)
	}
	if !strings.Contains(p.out.String(), "two payments wait for you") {
		t.Errorf("the demo says %s", p.out.String())
	}
	if code := p.stop(t); code != 0 {
		t.Errorf("the demo ended with %d: %s", code, p.log.String())
	}
}

var signInPattern = regexp.MustCompile(`http://127\.0\.0\.1:\d+/sign-in#\S+`)

// The demo ends when it is interrupted at its question.
//
//countersign:race
func TestDemoThatIsLeft(t *testing.T) {
	t.Parallel()
	ctx, leave := context.WithCancel(t.Context())
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer writer.Close()
	var out, errOutput servicetest.Buffer
	ended := make(chan int, 1)
	go func() { ended <- run(ctx, []string{"demo"}, reader, &out, &errOutput) }()
	servicetest.Eventually(t, "the person is asked", func() bool { return strings.Contains(out.String(), "[y/N]") })
	leave()
	if code := <-ended; code != cli.ExitFailed {
		t.Errorf("exit status %d", code)
	}
}
