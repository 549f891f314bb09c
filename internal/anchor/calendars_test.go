package anchor_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"countersign/internal/anchor"
)

func newCalendars(t *testing.T, needed int, urls ...string) *anchor.Calendars {
	t.Helper()
	calendars, err := anchor.NewCalendars(anchor.CalendarsConfig{URLs: urls, Needed: needed, Timeout: 2 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	return calendars
}

var salt = [16]byte{1, 2, 3, 4, 5}

// A digest that was submitted to calendars becomes a proof that verifies with the earliest block.
func TestStampUpgradeVerify(t *testing.T) {
	t.Parallel()
	first, second, blocks := startCalendar(t), startCalendar(t), newChain()
	calendars := newCalendars(t, 2, first.url+"/", second.url)
	digest := digestOf("from nothing to a block")
	proof, err := calendars.Stamp(t.Context(), digest, salt)
	if err != nil {
		t.Fatal(err)
	}
	if want := hashed(string(digest[:]), string(salt[:])); first.submitted[0] != hashed(want, first.salt(0)) {
		t.Error("the calendar was not shown the hash of digest and nonce")
	}
	for range 3 { // digests of others
		if _, err := calendars.Stamp(t.Context(), digestOf("other"), salt); err != nil {
			t.Fatal(err)
		}
	}
	same, changed, err := calendars.Upgrade(t.Context(), proof)
	if err != nil || changed || string(same) != string(proof) {
		t.Fatalf("an upgrade before any block: changed %v, %v", changed, err)
	}
	expect(t, blocks, proof, digest, anchor.Verdict{Status: anchor.Pending})

	second.confirm(blocks, 7)
	proof = upgrade(t, calendars, proof)
	expect(t, blocks, proof, digest, anchor.Verdict{Status: anchor.Verified, Height: 7, BlockTime: blocks.time(7)})
	first.confirm(blocks, 6)
	proof = upgrade(t, calendars, proof)
	expect(t, blocks, proof, digest, anchor.Verdict{Status: anchor.Verified, Height: 6, BlockTime: blocks.time(6)})

	asked := first.asked + second.asked
	if _, changed, err := calendars.Upgrade(t.Context(), proof); err != nil || changed || first.asked+second.asked != asked {
		t.Errorf("a confirmed proof was upgraded again: changed %v, %v", changed, err)
	}
}

func upgrade(t *testing.T, calendars *anchor.Calendars, proof []byte) []byte {
	t.Helper()
	upgraded, changed, err := calendars.Upgrade(t.Context(), proof)
	if err != nil || !changed {
		t.Fatalf("upgrade: changed %v, %v", changed, err)
	}
	return upgraded
}

// A calendar that fails or answers nonsense does not spoil a proof if enough others answer.
func TestSurvivingCalendars(t *testing.T) {
	t.Parallel()
	tests := map[string]http.HandlerFunc{
		"broken":           func(writer http.ResponseWriter, _ *http.Request) { writer.WriteHeader(http.StatusBadGateway) },
		"talkative":        func(writer http.ResponseWriter, _ *http.Request) { _, _ = writer.Write(make([]byte, 5000)) },
		"silent":           func(http.ResponseWriter, *http.Request) {},
		"unintelligible":   reply("\x55"),
		"too deep":         reply(strings.Repeat(sha256Op, 200) + pending("http://ignored")),
		"too bushy":        reply(strings.Repeat(fork+unknown(""), 300) + unknown("")),
		"for someone else": reply(pending("http://pool.example")),
		"with two answers": nil, // set below, because it needs its own address
		"in a block":       nil,
	}
	for name, handler := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bad, good := startCalendar(t), startCalendar(t)
			bad.answer = handler
			switch name {
			case "with two answers":
				bad.answer = reply(fork + pending(bad.url) + sha256Op + pending(bad.url))
			case "in a block": // nobody can have confirmed what was submitted just now
				bad.answer = reply(fork + pending(bad.url) + inBlock(5))
			}
			digest := digestOf(name)
			proof, err := newCalendars(t, 1, bad.url, good.url).Stamp(t.Context(), digest, salt)
			if err != nil {
				t.Fatalf("one calendar was enough: %v", err)
			}
			expect(t, newChain(), proof, digest, anchor.Verdict{Status: anchor.Pending})
			if proof, err := newCalendars(t, 2, bad.url, good.url).Stamp(t.Context(), digest, salt); anchor.ReasonOf(err) != anchor.Unavailable {
				t.Errorf("two were needed: got %x, %v", proof, err)
			}
		})
	}
}

// A calendar that names more blocks than it needs does not keep the others from confirming a proof.
func TestSurvivingConfirmations(t *testing.T) {
	t.Parallel()
	bad, good, blocks := startCalendar(t), startCalendar(t), newChain()
	calendars := newCalendars(t, 2, bad.url, good.url)
	digest := digestOf("crowded")
	proof, err := calendars.Stamp(t.Context(), digest, salt)
	if err != nil {
		t.Fatal(err)
	}
	many := ""
	for height := range 20 {
		many += fork + inBlock(height)
	}
	bad.answer = reply(many + inBlock(20))
	good.confirm(blocks, 7)
	proof = upgrade(t, calendars, proof)
	expect(t, blocks, proof, digest, anchor.Verdict{Status: anchor.Verified, Height: 7, BlockTime: blocks.time(7)})
}

// A calendar's promise counts even if its answer has a branch with an unknown operation. The proof
// omits that branch, so that other implementations can read it.
func TestStampLeavesUnknownOperationsOut(t *testing.T) {
	t.Parallel()
	calendar := startCalendar(t)
	calendar.answer = reply(fork + unknownOp + unknown("x") + sha256Op + pending(calendar.url))
	digest := digestOf("unknown operation")
	proof, err := newCalendars(t, 1, calendar.url).Stamp(t.Context(), digest, salt)
	if err != nil {
		t.Fatal(err)
	}
	want := magic + string(digest[:]) + appendOp(string(salt[:])) + sha256Op + sha256Op + pending(calendar.url)
	if diff := cmp.Diff(want, string(proof)); diff != "" {
		t.Errorf("the proof differs (-want +got):\n%s", diff)
	}
}

func reply(text string) http.HandlerFunc {
	return func(writer http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(writer, text) }
}

// An upgrade takes only the path to the block from a calendar's answer, and contacts no host that
// is not configured.
func TestUpgradeAnswers(t *testing.T) {
	t.Parallel()
	stray := 0
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { stray++ }))
	t.Cleanup(other.Close)
	tests := map[string]struct {
		handler http.HandlerFunc
		want    anchor.Reason
		changed bool
	}{
		"another promise":   {reply(sha256Op + pending("http://calendar.example")), "", false},
		"a redirect":        {func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, other.URL, http.StatusFound) }, anchor.Unavailable, false},
		"broken":            {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) }, anchor.Unavailable, false},
		"refused":           {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) }, anchor.Refused, false},
		"unintelligible":    {reply("?"), anchor.Malformed, false},
		"an unknown branch": {reply(fork + unknownOp + inBlock(9) + sha256Op + inBlock(5)), "", true},
		"only an unknown":   {reply(unknownOp + inBlock(9)), "", false},
		"more than enough":  {reply(fork + unknown("x") + fork + sha256Op + pending(other.URL) + sha256Op + inBlock(5)), "", true},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			running := startCalendar(t)
			calendars := newCalendars(t, 1, running.url)
			digest := digestOf(name)
			proof, err := calendars.Stamp(t.Context(), digest, salt)
			if err != nil {
				t.Fatal(err)
			}
			running.answer = test.handler
			upgraded, changed, err := calendars.Upgrade(t.Context(), proof)
			if anchor.ReasonOf(err) != test.want || changed != test.changed {
				t.Fatalf("got changed %v, %v; want %v, %q", changed, err, test.changed, test.want)
			}
			if strings.Contains(string(upgraded), other.URL) {
				t.Error("the upgrade kept more than the way to the block")
			}
		})
	}
	t.Run("a calendar that is not configured", func(t *testing.T) {
		t.Parallel()
		digest := digestOf("stray")
		proof := []byte(magic + string(digest[:]) + pending(other.URL))
		if _, changed, err := newCalendars(t, 1, "http://calendar.example").Upgrade(t.Context(), proof); changed || err != nil {
			t.Errorf("got changed %v, %v", changed, err)
		}
	})
	t.Cleanup(func() {
		if stray > 0 {
			t.Errorf("a host that is not configured was asked %d times", stray)
		}
	})
	if _, _, err := newCalendars(t, 1, other.URL).Upgrade(t.Context(), []byte("nothing")); anchor.ReasonOf(err) != anchor.Malformed {
		t.Errorf("no proof at all: got %v", err)
	}
}

// Calendars with invalid addresses, or fewer than needed, are refused without revealing a secret.
func TestCalendarsConfig(t *testing.T) {
	t.Parallel()
	tests := map[string]anchor.CalendarsConfig{
		"none":           {},
		"too few":        {URLs: []string{"https://a.example"}, Needed: 2},
		"too many":       {URLs: slices.Repeat([]string{"https://a.example"}, 9)},
		"another scheme": {URLs: []string{"ftp://a.example"}},
		"a password":     {URLs: []string{"https://user:hush@a.example"}},
		"a query":        {URLs: []string{"https://a.example?key=hush"}},
	}
	for name, config := range tests {
		if _, err := anchor.NewCalendars(config); err == nil || strings.Contains(err.Error(), "hush") {
			t.Errorf("%s: got %v, want a refusal that gives nothing away", name, err)
		}
	}
}
