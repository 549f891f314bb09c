package worker

import (
	"context"
	"crypto/rand"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"

	"countersign/internal/ledger"
	"countersign/internal/service"
)

// logsOfOne are logs with one receipt each.
type logsOfOne struct {
	orgs  []ledger.OrgID
	logs  map[ledger.OrgID]*service.LogToWitness
	vkeys []string

	mu       sync.Mutex
	signs    bool
	attached map[ledger.OrgID][]string      // attached lines, one element per call
	first    map[ledger.OrgID]time.Duration // time of the first attachment, since the start
	start    time.Time
}

func newLogsOfOne(t *testing.T, count int) *logsOfOne {
	t.Helper()
	l := &logsOfOne{
		logs: make(map[ledger.OrgID]*service.LogToWitness), signs: true,
		attached: make(map[ledger.OrgID][]string), first: make(map[ledger.OrgID]time.Duration), start: time.Now(),
	}
	for i := range count {
		origin := fmt.Sprintf("log.example.com/%d", i)
		skey, vkey, err := note.GenerateKey(rand.Reader, origin)
		if err != nil {
			t.Fatal(err)
		}
		signed := must[[]byte](t)(note.Sign(&note.Note{Text: fmt.Sprintf("%s\n1\n%s\n", origin, tlog.RecordHash([]byte(origin)))}, must[note.Signer](t)(note.NewSigner(skey))))
		org := ledger.OrgID{UUID: uuid.UUID{byte(i + 1)}}
		l.orgs, l.vkeys = append(l.orgs, org), append(l.vkeys, vkey)
		l.logs[org] = &service.LogToWitness{Org: org, Origin: origin, Size: 1, Checkpoint: signed}
	}
	return l
}

func (l *logsOfOne) GrownLogs(context.Context) ([]ledger.OrgID, bool, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.orgs), l.signs, nil
}

func (l *logsOfOne) LogToWitness(_ context.Context, org ledger.OrgID) (*service.LogToWitness, error) {
	return l.logs[org], nil
}

func (*logsOfOne) ProveToWitness(context.Context, *service.LogToWitness, int64) ([]tlog.Hash, error) {
	return nil, nil
}

func (l *logsOfOne) AttachCosignatures(_ context.Context, log *service.LogToWitness, lines []byte) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.attached[log.Org]) == 0 {
		l.first[log.Org] = time.Since(l.start)
	}
	l.attached[log.Org] = append(l.attached[log.Org], string(lines))
	return nil
}

// slow makes a witness slow, or never answer, and counts the waiting requests.
type slow struct {
	http.RoundTripper
	takes time.Duration // 0: forever

	mu            sync.Mutex
	waiting, most int
	asked         int
}

func (s *slow) RoundTrip(r *http.Request) (*http.Response, error) {
	s.mu.Lock()
	s.waiting++
	s.asked++
	s.most = max(s.most, s.waiting)
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		s.waiting--
		s.mu.Unlock()
	}()
	var answers <-chan time.Time
	if s.takes > 0 {
		timer := time.NewTimer(s.takes)
		defer timer.Stop()
		answers = timer.C
	}
	select {
	case <-answers:
		return s.RoundTripper.RoundTrip(r)
	case <-r.Context().Done():
		return nil, r.Context().Err()
	}
}

// A slow witness and one that never answers delay no other: the cosignatures of the fast one are
// stored within seconds, for more logs than there are slots. Those of the slow one are added later,
// and the dead one is not asked again.
//
//countersign:race
func TestSlowWitnessesDelayNoOther(t *testing.T) {
	t.Parallel()
	const count = 40
	all := newLogsOfOne(t, count)
	quick, lame, dead := newSite(t, "quick", all.vkeys...), newSite(t, "lame", all.vkeys...), newSite(t, "dead")
	synctest.Test(t, func(t *testing.T) {
		late, never := &slow{RoundTripper: lame, takes: 7 * time.Second}, &slow{RoundTripper: dead}
		lame.client.HTTP, dead.client.HTTP = &http.Client{Transport: late}, &http.Client{Transport: never}
		all.start = time.Now()
		s := submitTo(t, all, quick, lame, dead)
		s.submitter.clock = time.Now
		s.run()
		if len(all.first) != count {
			t.Errorf("%d logs were cosigned", len(all.first))
		}
		for org, took := range all.first {
			if took > 3*gatherTime || strings.Count(all.attached[org][0], "— quick ") != 1 {
				t.Errorf("log %x: stored after %s: %q", org.UUID[0], took, all.attached[org])
			}
		}
		if late.most > submitLanes || never.most > submitLanes {
			t.Errorf("%d and %d submissions wait at once", late.most, never.most)
		}
		if never.asked > 2*submitLanes {
			t.Errorf("the dead one was asked %d times", never.asked)
		}
		for range 20 {
			time.Sleep(submitEvery)
			s.run()
		}
		for org, stored := range all.attached {
			if text := strings.Join(stored, ""); strings.Count(text, "— lame ") != 1 || !strings.Contains(text, "— quick ") {
				t.Errorf("log %x: %q", org.UUID[0], stored)
			}
		}
		if quick.requests.Load() != count || never.asked > 2*submitLanes+10 {
			t.Errorf("the quick one was asked %d times, the dead one %d times", quick.requests.Load(), never.asked)
		}
	})
}

// A replica that is not the signer, or no longer is, submits nothing.
func TestOnlyTheSignerSubmits(t *testing.T) {
	t.Parallel()
	all := newLogsOfOne(t, 1)
	w := newSite(t, "w1", all.vkeys...)
	s := submitTo(t, all, w)
	all.signs = false
	s.run()
	all.signs = true
	s.run()
	all.signs = false
	s.later(time.Hour)
	if got := w.requests.Load(); got != 1 {
		t.Errorf("%d submissions", got)
	}
}

// A log that the witness does not know is reported once, retried less and less often, and does not
// keep others from being cosigned.
func TestUnregisteredLog(t *testing.T) {
	t.Parallel()
	all := newLogsOfOne(t, 2)
	w := newSite(t, "w1", all.vkeys[0])
	s := submitTo(t, all, w)
	for range 60 {
		s.run()
		s.clock.Advance(time.Minute)
	}
	if len(all.attached[all.orgs[0]]) != 1 || len(all.attached[all.orgs[1]]) != 0 {
		t.Errorf("attached: %v", all.attached)
	}
	if got := w.requests.Load(); got < 5 || got > 12 {
		t.Errorf("%d submissions in an hour", got)
	}
	if log := s.log.String(); strings.Count(log, "level=WARN") != 1 || !strings.Contains(log, "countersign log vkey") || s.disagreements() != 0 {
		t.Errorf("the log says\n%s", log)
	}
}
