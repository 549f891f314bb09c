package witness

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"
	"time"

	"golang.org/x/mod/sumdb/tlog"
)

// Follower fetches the checkpoints that one log publishes, cosigns them, and raises
// alarms.
type Follower struct {
	Witness  *Witness
	URL      string        // where the log publishes, in the layout of C2SP tlog-tiles
	Interval time.Duration // between two fetches
	// MaxAge is how long a log may go without a checkpoint that could be fetched and
	// checked, and how long it may publish a smaller one than it had cosigned.
	MaxAge time.Duration
	// MaxIdle is how long a log may go without growing; 0 for as long as it likes. A
	// checkpoint has no time in it: only who runs the log knows whether it is idle.
	MaxIdle time.Duration
	HTTP    *http.Client // nil stands for one of the package's own

	name   string    // the log's origin; "" until it was fetched once
	heard  time.Time // of the last pass that found nothing wrong with the fetch
	failed bool      // the last pass failed, and was logged
	// followed is the log, for LastNew, which other goroutines call; nil until it was
	// fetched once.
	followed atomic.Pointer[origin]
}

// LastNew is the log's number in the list, and when its last new checkpoint was cosigned. It
// is not ok while that is not known.
func (f *Follower) LastNew(ctx context.Context) (log int, at time.Time, ok bool) {
	o := f.followed.Load()
	if o == nil {
		return 0, time.Time{}, false
	}
	last, err := f.Witness.snapshot(ctx, o)
	if err != nil || last.Grown == 0 {
		return 0, time.Time{}, false
	}
	return o.number, time.Unix(last.Grown, 0), true
}

// errRollback and errFork are verdicts of a pass: the log was read.
var (
	errRollback = errors.New("the log publishes a smaller tree than before")
	errFork     = errors.New("the log has signed two histories")
)

// Alarming says whether an error of Check is a verdict about the log. Any other
// error says that the log could not be read.
func Alarming(err error) bool {
	return errors.Is(err, errRollback) || errors.Is(err, errFork) || errors.Is(err, errIdle)
}

var errIdle = errors.New("the log does not grow")

// Run checks the log until the context ends.
func (f *Follower) Run(ctx context.Context) {
	f.heard = time.Now()
	ticker := time.NewTicker(f.Interval)
	defer ticker.Stop()
	for {
		f.pass(ctx)
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

// pass checks the log once, and knows since when it is silent.
func (f *Follower) pass(ctx context.Context) {
	err := f.Check(ctx)
	if ctx.Err() != nil {
		return
	}
	if err == nil || Alarming(err) {
		f.heard, f.failed = time.Now(), false
		f.Witness.clear(f.name, AlarmSilence)
		f.Witness.clear(f.URL, AlarmSilence)
		return
	}
	if !f.failed {
		f.Witness.log.Warn("a log that is followed could not be read", "url", f.URL, "error", err)
	}
	f.failed = true
	switch {
	case time.Since(f.heard) <= f.MaxAge:
	case f.name == "":
		f.Witness.raise(f.URL, AlarmSilence)
	default:
		f.Witness.raise(f.name, AlarmSilence)
		f.Witness.clear(f.URL, AlarmSilence) // from before the name was known: it is one log
	}
}

// checkTime bounds one pass.
const checkTime = time.Minute

// Check fetches the log's checkpoint once and cosigns it where it is new. Alarming
// tells its errors apart.
func (f *Follower) Check(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, checkTime)
	defer cancel()
	base, err := checkURL(f.URL)
	if err != nil {
		return err
	}
	from := &source{base, f.HTTP}
	data, err := from.checkpoint(ctx)
	if err != nil {
		return err
	}
	o, signed, err := f.Witness.verified(data)
	if err != nil {
		return fmt.Errorf("the checkpoint at %s: %w", f.URL, err)
	}
	if before := f.before(ctx, base); before != nil && before != o {
		f.name = before.Origin
		return fmt.Errorf("%s publishes log %d of the list, and published log %d before: if that is right, delete log %d from %s",
			f.URL, o.number, before.number, before.number, registryFile)
	}
	f.name = o.Origin
	f.followed.Store(o)
	last, err := f.Witness.snapshot(ctx, o)
	if err != nil {
		return err
	}
	if signed.Size < last.Size {
		err = f.behind(ctx, from, &last, signed)
	} else {
		err = f.ahead(ctx, from, data, &last, signed)
	}
	if err != nil {
		return err
	}
	return f.idle(ctx, o)
}

// before is the log that this address has published until now; nil where it is not known. An
// address that shows another registered log would hide that its own has fallen silent.
func (f *Follower) before(ctx context.Context, base string) *origin {
	if o := f.followed.Load(); o != nil {
		return o
	}
	for _, o := range f.Witness.origins {
		if last, err := f.Witness.snapshot(ctx, o); err == nil && last.Source == base {
			return o
		}
	}
	return nil
}

// ahead cosigns a checkpoint that is not smaller than the last one.
func (f *Follower) ahead(ctx context.Context, from *source, data []byte, last *head, signed *checkpoint) error {
	next := submission{old: last.Size, checkpoint: data, source: from.base}
	if signed.Size == last.Size && signed.Root == last.Root && last.Published == last.Size && last.Source == from.base && last.Note != "" {
		f.Witness.clear(f.name, AlarmRollback)
		return nil // nothing new
	}
	if last.Size > 0 && signed.Size > last.Size {
		var err error
		if next.proof, err = from.prove(ctx, tlog.Tree{N: signed.Size, Hash: signed.Root}, last.Size); err != nil {
			return err
		}
		// The tiles belong to the new root. Where they do not lead to the old one,
		// the log has signed two histories.
		if tlog.CheckTree(next.proof, signed.Size, signed.Root, last.Size, last.Root) != nil {
			f.Witness.reportFork(last, signed, next.proof)
			return errFork
		}
	}
	_, err := f.Witness.cosign(ctx, next)
	var conflict *ConflictError
	switch {
	case errors.Is(err, errOtherRoot):
		return errFork
	case errors.As(err, &conflict):
		return nil // the log has submitted another one meanwhile; the next pass sees it
	case err != nil:
		return err
	}
	f.Witness.clear(f.name, AlarmRollback)
	return nil
}

// behind judges a checkpoint that is smaller than what was cosigned. A log that
// submits its checkpoints publishes them later, so that is no fault by itself: it is
// one where a larger tree was published before, or where the larger one stays away.
func (f *Follower) behind(ctx context.Context, from *source, last *head, signed *checkpoint) error {
	proof, err := f.proveOlder(ctx, from, last, signed)
	switch {
	case errors.Is(err, errFork):
		f.Witness.reportFork(last, signed, proof)
		return errFork
	case last.Published > signed.Size, time.Since(time.Unix(last.Time, 0)) > f.MaxAge:
		f.Witness.raise(f.name, AlarmRollback)
		return errRollback
	}
	return nil
}

// proveOlder holds an older checkpoint against the last one, where the log has the
// tiles for it. After a rollback it has not, and nothing is shown.
func (f *Follower) proveOlder(ctx context.Context, from *source, last *head, signed *checkpoint) (tlog.TreeProof, error) {
	if signed.Size == 0 {
		return nil, nil
	}
	proof, err := from.prove(ctx, tlog.Tree{N: last.Size, Hash: last.Root}, signed.Size)
	if err != nil {
		return nil, err
	}
	if tlog.CheckTree(proof, last.Size, last.Root, signed.Size, signed.Root) != nil {
		return proof, errFork
	}
	return proof, nil
}

// idle raises an alarm for a log that answers and does not grow.
func (f *Follower) idle(ctx context.Context, o *origin) error {
	if f.MaxIdle <= 0 {
		return nil
	}
	last, err := f.Witness.snapshot(ctx, o)
	if err != nil {
		return err
	}
	if time.Since(time.Unix(last.Grown, 0)) <= f.MaxIdle {
		f.Witness.clear(f.name, AlarmIdle)
		return nil
	}
	f.Witness.raise(f.name, AlarmIdle)
	return errIdle
}
