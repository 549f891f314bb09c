// Package browsertest opens tabs of a real Chromium for tests.
package browsertest

import (
	"context"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"countersign/internal/nightly"
)

// Debian builds both from one source. The shell has no windows, which saves more than half of the
// processor time of these tests.
const (
	shell    = "/usr/lib/chromium/chromium-headless-shell"
	chromium = "/usr/bin/chromium"
)

// program is the browser: for every commit the shell, in the long run what people use.
func program() string { return []string{shell, chromium}[nightly.Count(0, 1)] }

// Elsewhere is a name for this machine that a browser trusts no more than any other host's.
const Elsewhere = "elsewhere.test"

// chrome is the browser that the tests of this process share. Starting it takes longer than most
// of them.
var chrome struct {
	start sync.Once
	ctx   context.Context
	err   error
	stop  context.CancelFunc // nil where it was not started
}

// start is called once, and makes a browser with an empty tab of its own.
func start() {
	options := append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath(program()), chromedp.NoSandbox, chromedp.DisableGPU,
		chromedp.Flag("disable-quic", true), chromedp.Flag("disable-component-update", true), chromedp.Flag("no-proxy-server", true),
		// No other host is to be reached, by the pages or by the browser itself.
		chromedp.Flag("host-resolver-rules", "MAP "+Elsewhere+" 127.0.0.1, MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"),
	)
	ctx, closeAllocator := chromedp.NewExecAllocator(context.Background(), options...)
	ctx, closeBrowser := chromedp.NewContext(ctx)
	chrome.ctx, chrome.err = ctx, chromedp.Do(ctx)
	chrome.stop = func() { closeBrowser(); closeAllocator() }
}

// Open opens a tab that shares no cookie, storage or cache with those of other tests, for at most
// the given time. It is closed when the test ends.
func Open(t testing.TB, limit time.Duration) context.Context {
	t.Helper()
	if _, err := os.Stat(program()); err != nil {
		t.Fatalf("this test needs %s, which make test and make nightly install: %v", program(), err)
	}
	if chrome.start.Do(start); chrome.err != nil {
		t.Fatalf("start %s: %v", program(), chrome.err)
	}
	ctx, closeTab := chromedp.NewContext(chrome.ctx, chromedp.WithNewBrowserContext())
	t.Cleanup(closeTab)
	ctx, stop := context.WithTimeout(ctx, limit)
	t.Cleanup(stop)
	return ctx
}

// Stop ends the browser, if there is one. Call it after the last test.
func Stop() {
	if chrome.stop != nil {
		chrome.stop()
	}
}
