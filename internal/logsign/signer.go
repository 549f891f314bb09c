// Package logsign signs transparency logs: it adds each organization's receipts to the tree of
// its log, and publishes signed checkpoints of the tree. Of several replicas, the one that holds
// the signer's lease signs. Each replica records in a file what it has signed, and a checkpoint
// is published only if it extends the previous one.
package logsign

import (
	"cmp"
	"context"
	"errors"
	"io"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"golang.org/x/mod/sumdb/note"

	"countersign/internal/cache"
	"countersign/internal/evidence"
	"countersign/internal/keyring"
	"countersign/internal/ledger"
	"countersign/internal/store"
	"countersign/internal/tlog"
	"countersign/internal/verify"
)

// Keys holds the keys of checkpoints and signs with them.
type Keys interface {
	verify.LogKeys
	SignLog(id string, message []byte) ([]byte, error)
}

// Config configures a Signer. All fields except Alone are required.
type Config struct {
	Keys        Keys
	Instance    string // prefix of the origin of each log that is opened
	Marks       *keyring.LogMarks
	Store       *evidence.Store
	Heads       *verify.Heads
	Logs        *verify.Logs
	ReceiptKeys ledger.Keys // for verifying receipts
	Clock       func() time.Time
	Random      io.Reader
	Log         *slog.Logger
	// Alone reports that there are no other replicas, so no lease is needed.
	Alone bool
	// Changed is called for a log that was changed outside the service. It must not block.
	Changed func(org ledger.OrgID, log uuid.UUID)
	// CloseEnded closes an organization's log that is open in the store, but has ended
	// according to its mark. It may leave the log to somebody else who is closing it.
	CloseEnded func(ctx context.Context, org ledger.OrgID) error
}

const (
	// signInterval is how long a receipt waits for others, so that they share a signature.
	signInterval = 200 * time.Millisecond
	// signPoll is how often the store is searched for receipts that other replicas have
	// sealed; signPollAlone if there are no other replicas.
	signPoll      = 500 * time.Millisecond
	signPollAlone = 5 * time.Second
	signTimeout   = 30 * time.Second // of one round
	resignTimeout = 2 * time.Second
	listPage      = 200 // organizations read together
	// cacheBytes bounds the cache of logs.
	cacheBytes = 16 << 20
	// maxPublished is how many logs are published in one transaction.
	maxPublished = 64
)

const (
	signerLease   = 5 * time.Second  // how long a lease lasts unless it is renewed
	retryPause    = time.Second      // after a log could not be signed
	tamperedPause = 10 * time.Second // after tampering with a log was found
	rebuildPause  = time.Hour        // between two rebuilds of one log
)

// Signer signs the logs. It is safe for concurrent use.
type Signer struct {
	Config
	holder uuid.UUID // identifies this replica as the holder of the lease
	sealed receiptQueue
	grown  grownLogs
	// leasedUntil is a copy of leased, in milliseconds, that can be read without mu.
	leasedUntil atomic.Int64
	stop        context.CancelFunc // nil before Start
	done        sync.WaitGroup     // the goroutine started by Start; Close waits for it

	mu     sync.Mutex // held during a round; guards the fields up to reached
	logs   *cache.Cache[ledger.OrgID, *signedLog]
	paused map[ledger.OrgID]pause
	leased ledger.Time  // end of this replica's lease; 0 if it is not the signer
	keys   *signingKeys // of the last round; nil before the first
	// unsigned are the logs that may not have the signatures of these keys, although they have not
	// grown.
	unsigned map[ledger.OrgID]bool
	// reached is called at the points where a test may end a round; nil outside tests.
	reached func(point string) error

	rebuildMu sync.Mutex // guards the fields below; a round locks it while it holds mu
	rebuilds  map[ledger.OrgID]rebuild
	// rechecks are the logs to be loaded again, without a rebuild. The value is true until a round
	// begins with it.
	rechecks map[ledger.OrgID]bool
}

// rebuild says whether the rebuild of a log's tiles was requested, and when it may begin.
type rebuild struct {
	requested bool
	notBefore ledger.Time
}

// pause is until when a log is not tried again, and why.
type pause struct {
	until ledger.Time
	why   string
}

// New returns a signer, which signs nothing before Start.
func New(c Config, holder uuid.UUID) *Signer {
	return &Signer{
		Config: c, holder: holder, sealed: newReceiptQueue(),
		logs: cache.New[ledger.OrgID, *signedLog](cacheBytes), paused: make(map[ledger.OrgID]pause), unsigned: make(map[ledger.OrgID]bool),
		rebuilds: make(map[ledger.OrgID]rebuild), rechecks: make(map[ledger.OrgID]bool),
	}
}

func (l *Signer) now() ledger.Time { return ledger.TimeOf(l.Clock()) }

// Add queues committed receipts to be signed. The caller must not modify them afterwards.
func (l *Signer) Add(receipts []*ledger.SealedReceipt) { l.sealed.add(receipts) }

// Start starts the goroutine that signs logs until Close.
func (l *Signer) Start() {
	ctx, cancel := context.WithCancel(context.Background())
	l.stop = cancel
	l.done.Go(func() {
		l.run(ctx)
		final := context.WithoutCancel(ctx)
		if l.sealed.any() {
			l.Round(final, false)
		}
		l.Resign(final)
	})
}

// Close signs the queued receipts, gives up the lease and waits for the goroutine to end.
func (l *Signer) Close() {
	if l.stop == nil {
		return
	}
	l.stop()
	l.done.Wait()
}

// Resign gives up the lease, so that another replica can sign at once. If that fails, the
// lease expires.
func (l *Signer) Resign(ctx context.Context) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.leased == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, resignTimeout)
	defer cancel()
	now := l.now()
	_, _ = l.Store.LeaseSigner(ctx, l.holder, now, now)
	l.lease(0)
}

// lease sets the end of this replica's lease; 0 for none. The caller holds mu.
func (l *Signer) lease(until ledger.Time) {
	l.leased = until
	l.leasedUntil.Store(int64(until))
}

func (l *Signer) run(ctx context.Context) {
	every := signPoll
	if l.Alone {
		every = signPollAlone
	}
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for poll := true; ; {
		again := l.Round(ctx, poll)
		poll = false
		if again {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C: // other logs do not wait for a long one
				poll = true
			default:
			}
			continue
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			poll = true
		case <-l.sealed.wake:
			select {
			case <-time.After(signInterval):
			case <-ctx.Done():
				return
			}
		}
	}
}

// Round signs the receipts that this process has sealed since the last round and, with poll,
// those that other replicas have sealed. It reports whether another round should follow at
// once.
func (l *Signer) Round(ctx context.Context, poll bool) (again bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, signTimeout)
	defer cancel()
	sealed := l.sealed.take()
	leads, err := l.leads(ctx)
	if err == nil && !leads {
		l.logs.Clear()
		return false
	}
	var wanted []ledger.OrgID
	if err == nil {
		wanted, again, err = l.wanted(ctx, sealed, poll)
	}
	if err != nil {
		if ctx.Err() == nil {
			l.Log.Warn("signing transparency logs failed: the next round tries again", "error", err)
		}
		return false
	}
	for group := range slices.Chunk(wanted, maxPublished) {
		var grown []*growth
		for _, org := range group {
			g, more, err := l.grow(ctx, org, sealed[org])
			again = again || more
			switch {
			case err != nil:
				l.failed(ctx, org, err)
			case g != nil:
				grown = append(grown, g)
			}
		}
		l.publish(ctx, grown)
	}
	return again
}

// leads reports whether this replica is the signer. It renews the lease when half of it has
// passed. The caller holds mu.
func (l *Signer) leads(ctx context.Context) (bool, error) {
	now := l.now()
	if l.Alone || now < l.leased.Add(-signerLease/2) {
		return true, nil
	}
	held, err := l.Store.LeaseSigner(ctx, l.holder, now, now.Add(signerLease))
	if held {
		l.lease(now.Add(signerLease))
	} else {
		l.lease(0)
	}
	return held, err
}

// wanted lists the organizations whose logs this round checks, sorted by id, and reports whether
// more remain for the next round. The caller holds mu.
func (l *Signer) wanted(ctx context.Context, sealed map[ledger.OrgID]*receiptRun, poll bool) (list []ledger.OrgID, more bool, err error) {
	wanted := make(map[ledger.OrgID]bool, len(sealed))
	for org := range sealed {
		wanted[org] = true
	}
	for _, org := range l.toLoad() {
		wanted[org] = true
		if log, known := l.logs.Get(org); known && !log.rebuilding {
			l.logs.Drop(org)
		}
	}
	if poll {
		var after ledger.OrgID
		for {
			orgs, err := l.Store.UnsignedLogs(ctx, after, listPage)
			if err != nil {
				return nil, false, err
			}
			for _, org := range orgs {
				wanted[org] = true
			}
			if len(orgs) < listPage {
				break
			}
			after = orgs[len(orgs)-1]
		}
	}
	if err := l.noteKeys(ctx); err != nil {
		return nil, false, err
	}
	now, resigned := l.now(), 0
	for org := range l.unsigned {
		switch {
		case wanted[org] || l.paused[org].until > now:
		case resigned == maxPublished: // so that new receipts do not wait for all of them
			more = true
		default:
			wanted[org] = true
			resigned++
		}
	}
	for org := range wanted {
		if l.paused[org].until <= now {
			list = append(list, org)
		}
	}
	slices.SortFunc(list, func(a, b ledger.OrgID) int { return slices.Compare(a.UUID[:], b.UUID[:]) })
	return list, more, nil
}

// noteKeys marks every log as unsigned if the keys are not those of the last round: one was rotated
// or revoked, here or while another process was the signer. The caller holds mu.
func (l *Signer) noteKeys(ctx context.Context) error {
	keys := l.signingKeys()
	if l.keys != nil && slices.Equal(keys.signing, l.keys.signing) && slices.Equal(keys.revoked, l.keys.revoked) {
		return nil
	}
	orgs, err := l.Store.Organizations(ctx)
	if err != nil {
		return err
	}
	for _, org := range orgs {
		l.unsigned[org.ID] = true
	}
	l.keys = keys
	return nil
}

// keep caches a log whose published checkpoint has the right signatures. The caller holds mu.
func (l *Signer) keep(log *signedLog) {
	org := log.record.Org
	l.loaded(log)
	l.logs.Put(org, log, log.edge.Bytes())
	delete(l.unsigned, org)
	delete(l.paused, org)
}

// signingKeys are the ids of the keys that a checkpoint must be signed with, and of those that it
// must not be signed with. A retired key's signature may stay.
type signingKeys struct{ signing, revoked []string }

func (l *Signer) signingKeys() *signingKeys {
	keys := new(signingKeys)
	for _, key := range l.Keys.LogKeys(l.Clock()) {
		switch {
		case key.Signs():
			keys.signing = append(keys.signing, key.ID)
		case key.Status == keyring.LogKeyRevoked:
			keys.revoked = append(keys.revoked, key.ID)
		}
	}
	return keys
}

// signed reports whether a checkpoint has the signatures that it must have, and no others of
// revoked keys.
func (k *signingKeys) signed(c *verify.SignedCheckpoint) bool {
	for _, id := range k.signing {
		if !slices.Contains(c.SignedBy, id) {
			return false
		}
	}
	return !slices.ContainsFunc(c.SignedBy, func(id string) bool { return slices.Contains(k.revoked, id) })
}

// failed logs why a log could not be signed, once per reason until it is signed, and pauses the
// log. The caller holds mu.
func (l *Signer) failed(ctx context.Context, org ledger.OrgID, err error) {
	l.logs.Drop(org)
	if ctx.Err() != nil {
		return
	}
	wait := retryPause
	if errors.Is(err, ledger.ErrStateTampered) || errors.Is(err, keyring.ErrLogForked) || errors.Is(err, keyring.ErrLogEnded) || errors.Is(err, evidence.ErrRolledBack) {
		wait = tamperedPause
	}
	if l.paused[org].why != err.Error() {
		l.Log.Error("a transparency log cannot be signed: run countersign doctor", "organization", org.String(), "error", err)
	}
	l.paused[org] = pause{l.now().Add(wait), err.Error()}
}

// publish signs the trees and publishes their checkpoints. It records on disk what it will sign
// before it signs, so that a crash never leads to a second signature over other content. The
// caller holds mu.
func (l *Signer) publish(ctx context.Context, grown []*growth) {
	if len(grown) == 0 {
		return
	}
	err := l.publishAll(ctx, grown)
	if err == nil {
		for _, g := range grown {
			l.keep(g.log)
		}
		return
	}
	if len(grown) > 1 && (errors.Is(err, store.ErrNotFound) || errors.Is(err, keyring.ErrLogForked) || errors.Is(err, keyring.ErrLogEnded)) {
		for _, g := range grown { // a log that fails must not block the others
			l.publish(ctx, []*growth{g})
		}
		return
	}
	for _, g := range grown {
		l.logs.Drop(g.log.record.Org)
		if errors.Is(err, store.ErrNotFound) { // another replica was first, and the next round continues from its checkpoint
			err = l.putBack(ctx, g.log)
		}
		if err != nil {
			l.failed(ctx, g.log.record.Org, err)
		}
	}
}

func (l *Signer) publishAll(ctx context.Context, grown []*growth) error {
	marks := make(map[uuid.UUID]keyring.LogMark, len(grown))
	for _, g := range grown {
		marks[g.log.record.ID] = keyring.LogMark{Org: g.log.record.Org.UUID, Size: g.checkpoint.Size, Root: g.checkpoint.Root}
	}
	if err := l.reach("before the mark"); err != nil {
		return err
	}
	if err := l.Marks.Advance(marks); err != nil {
		return err
	}
	if err := l.reach("before the signature"); err != nil {
		return err
	}
	publications := make([]*store.LogPublication, len(grown))
	for i, g := range grown {
		signed, ids, err := l.sign(g.checkpoint)
		if err != nil {
			return err
		}
		g.signed = &verify.SignedCheckpoint{Checkpoint: g.checkpoint, Note: signed, SignedBy: ids}
		publications[i] = &store.LogPublication{
			LogCheckpoint: store.LogCheckpoint{Log: g.log.record.ID, Size: g.checkpoint.Size, Root: g.checkpoint.Root, Note: signed},
			Before:        g.log.before(), Tiles: g.tiles,
		}
	}
	if err := l.reach("before publication"); err != nil {
		return err
	}
	if err := l.Store.PublishLogs(ctx, publications); err != nil {
		return err
	}
	for _, g := range grown {
		g.log.published, g.log.pending = g.signed, nil
		l.grown.note(g.log.record.Org)
	}
	return l.reach("after publication")
}

// reach lets a test end the round at a point.
func (l *Signer) reach(point string) error {
	if l.reached == nil {
		return nil
	}
	return l.reached(point)
}

// sign returns the note of a checkpoint, signed with every signing key.
func (l *Signer) sign(c tlog.Checkpoint) (signed []byte, ids []string, err error) {
	signers, ids := l.NoteSigners(c.Origin)
	signed, err = tlog.Sign(c, signers...)
	return signed, ids, err
}

// NoteSigners returns the signing keys with a log's origin as their name, and their ids.
func (l *Signer) NoteSigners(origin string) (signers []note.Signer, ids []string) {
	for _, key := range l.Keys.LogKeys(l.Clock()) {
		if key.Signs() {
			ids = append(ids, key.ID)
			signers = append(signers, tlog.Signer(origin, key.Public, func(message []byte) ([]byte, error) { return l.Keys.SignLog(key.ID, message) }))
		}
	}
	return signers, ids
}

// Rebuild requests that a log's tiles be rebuilt from the receipts, at most once an hour. The
// request stands until the rebuilt tiles are published.
func (l *Signer) Rebuild(org ledger.OrgID) {
	l.rebuildMu.Lock()
	defer l.rebuildMu.Unlock()
	r := l.rebuilds[org]
	r.requested = true
	l.rebuilds[org] = r
	if r.notBefore <= l.now() {
		wakeUp(l.sealed.wake)
	}
}

// Recheck requests that a stored log be compared with what was signed, and signed again if it must
// be, without waiting for it to grow.
func (l *Signer) Recheck(org ledger.OrgID) {
	l.rebuildMu.Lock()
	defer l.rebuildMu.Unlock()
	l.rechecks[org] = true
	wakeUp(l.sealed.wake)
}

// toLoad lists the logs to be loaded again now. A round calls it before it loads any.
func (l *Signer) toLoad() (orgs []ledger.OrgID) {
	l.rebuildMu.Lock()
	defer l.rebuildMu.Unlock()
	for org := range l.rechecks {
		orgs, l.rechecks[org] = append(orgs, org), false
	}
	for org, r := range l.rebuilds {
		if r.due(l.now()) {
			orgs = append(orgs, org)
		}
	}
	return orgs
}

func (r rebuild) due(now ledger.Time) bool { return r.requested && r.notBefore <= now }

// toRebuild reports whether a log must be rebuilt now.
func (l *Signer) toRebuild(org ledger.OrgID) bool {
	l.rebuildMu.Lock()
	defer l.rebuildMu.Unlock()
	return l.rebuilds[org].due(l.now())
}

// loaded ends what was requested of a log before this round, because the log is as it must be.
func (l *Signer) loaded(log *signedLog) {
	l.rebuildMu.Lock()
	if !l.rechecks[log.record.Org] {
		delete(l.rechecks, log.record.Org)
	}
	l.rebuildMu.Unlock()
	if log.rebuilding {
		log.rebuilding = false
		l.endRebuild(log.record.Org, true)
	}
}

// endRebuild lets the next rebuild of a log wait, if this one was requested. The request stands
// unless the rebuild is done.
func (l *Signer) endRebuild(org ledger.OrgID, done bool) {
	l.rebuildMu.Lock()
	defer l.rebuildMu.Unlock()
	if l.rebuilds[org].requested {
		l.rebuilds[org] = rebuild{requested: !done, notBefore: l.now().Add(rebuildPause)}
	}
}

// maxQueuedBytes bounds the receipts that wait in memory to be signed. Others are read from the
// store.
const maxQueuedBytes = 8 << 20

// receiptQueue holds the receipts that this process has sealed since the last round, so that
// they need not be read and verified again.
type receiptQueue struct {
	wake chan struct{} // receives a value when there are receipts

	mu    sync.Mutex // guards the fields below
	of    map[ledger.OrgID]*receiptRun
	bytes int // size of the receipts added since the last take
}

// receiptRun holds one organization's receipts.
type receiptRun struct {
	receipts []*ledger.SealedReceipt
	more     bool // the store has receipts that are not in receipts
}

func newReceiptQueue() receiptQueue {
	return receiptQueue{wake: make(chan struct{}, 1), of: make(map[ledger.OrgID]*receiptRun)}
}

func (s *receiptQueue) add(receipts []*ledger.SealedReceipt) {
	if len(receipts) == 0 {
		return
	}
	s.mu.Lock()
	for _, r := range receipts {
		run := s.of[r.Org]
		if run == nil {
			run = new(receiptRun)
			s.of[r.Org] = run
		}
		if s.bytes += len(r.Body); s.bytes > maxQueuedBytes {
			run.more = true
			continue
		}
		run.receipts = append(run.receipts, r)
	}
	s.mu.Unlock()
	wakeUp(s.wake)
}

func (s *receiptQueue) any() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.of) > 0
}

// take empties the queue. The receipts of each organization are sorted by sequence, because
// batches may arrive out of order.
func (s *receiptQueue) take() map[ledger.OrgID]*receiptRun {
	s.mu.Lock()
	taken := s.of
	s.of, s.bytes = make(map[ledger.OrgID]*receiptRun), 0
	s.mu.Unlock()
	for _, run := range taken {
		slices.SortFunc(run.receipts, func(a, b *ledger.SealedReceipt) int { return cmp.Compare(a.Sequence, b.Sequence) })
	}
	return taken
}

// grownLogs tracks the logs that were published since the last call of take. It tracks nothing
// before the first call.
type grownLogs struct {
	mu       sync.Mutex // guards the fields below
	tracking bool
	of       map[ledger.OrgID]struct{}
}

func (g *grownLogs) note(org ledger.OrgID) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.tracking {
		g.of[org] = struct{}{}
	}
}

// forget stops tracking until the next call of take.
func (g *grownLogs) forget() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.tracking, g.of = false, nil
}

// take returns the tracked logs. The list is incomplete if nothing was tracked since the last
// call: then any log may have grown.
func (g *grownLogs) take() (orgs []ledger.OrgID, complete bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for org := range g.of {
		orgs = append(orgs, org)
	}
	complete, g.tracking, g.of = g.tracking, true, make(map[ledger.OrgID]struct{})
	return orgs, complete
}

// GrownLogs lists the organizations whose logs this replica has published since the last call;
// in the first call since it became the signer, all organizations. signs reports whether this
// replica is the signer. If it is not, the list is empty.
func (l *Signer) GrownLogs(ctx context.Context) (grown []ledger.OrgID, signs bool, err error) {
	if !l.Alone && l.now() >= ledger.Time(l.leasedUntil.Load()) {
		l.grown.forget()
		return nil, false, nil
	}
	grown, complete := l.grown.take()
	if complete {
		return grown, true, nil
	}
	orgs, err := l.Store.Organizations(ctx)
	if err != nil {
		l.grown.forget()
		return nil, true, err
	}
	grown = grown[:0]
	for _, org := range orgs {
		grown = append(grown, org.ID)
	}
	return grown, true, nil
}

// EndRoundsAt ends rounds with an error at the points for which reached returns one, as if the
// process had crashed there. It is for tests.
func (l *Signer) EndRoundsAt(reached func(point string) error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.reached = reached
}

// ForgetPauses ends the pauses of all logs. It is for tests.
func (l *Signer) ForgetPauses() {
	l.mu.Lock()
	defer l.mu.Unlock()
	clear(l.paused)
}

// wakeUp sends a value unless one is already buffered. It never blocks.
func wakeUp(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
