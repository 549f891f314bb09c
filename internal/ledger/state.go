package ledger

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"slices"
	"strings"

	"countersign/internal/canon"
)

// ChainState is what moves while a chain runs. It is stored with an
// authenticator, so that a chain cannot be bent between two of its events.
type ChainState struct {
	// Revision counts how often the state was stored. It tells an older state of the
	// chain from a newer one. States from before it was counted have 0.
	Revision      int64
	Status        ChainStatus
	Actions       int64    // events recorded, markers among them; the last one's sequence
	Markers       int64    // of the events, those that are no actions
	Entries       int64    // events and what was recorded about them later
	Digest        [32]byte // running digest over the entries
	Agents        []string // those that took actions, in order of first appearance
	Metrics       Metrics
	Tokens        int64     // of the actions that were allowed
	Approvals     int64     // asked for
	Waiting       int64     // of those, how many nobody has settled
	Pending       Held      // what waiting actions hold
	Granted       Allowance // from where the auto-pause limits count
	PauseReason   string    // why the chain is paused, "" while it is not
	PolicyVersion string    // of the newest decision
	LastAt        Time      // the newest moment recorded; later ones never precede it
	CompletedAt   *Time
	Receipt       *ReceiptID
	Leases        UsedLeases
	Failure       *Failure // why a failed chain failed, where the client said so
	Abandoned     bool     // the service sealed the chain: nobody asked for it any more
	ContinuedBy   *ChainID // of an abandoned chain, once something arrived for it
	Carried       Carried  // what the chains before this one have used
}

// Held is what actions hold of a chain's limits.
type Held struct {
	Exposure Money
	Tokens   int64
}

// Allowance is where a chain stood when its limits were last granted: at its
// beginning, or when an admin resumed it.
type Allowance struct {
	Actions int64
	Markers int64
	Tokens  int64
	At      Time
}

// NewChainState is the state of a chain just opened.
func NewChainState(startedAt Time, policyVersion string) *ChainState {
	return &ChainState{Status: ChainActive, Digest: sha256.Sum256(nil), PolicyVersion: policyVersion, LastAt: startedAt}
}

// enter adds one entry's canonical bytes to the running digest.
func (s *ChainState) enter(body []byte) {
	s.Digest = NextDigest(s.Digest, body)
	s.Entries++
}

// NextDigest is the running digest after one more entry.
func NextDigest(digest [32]byte, body []byte) [32]byte {
	h := sha256.New()
	h.Write(digest[:])
	h.Write(body)
	h.Sum(digest[:0])
	return digest
}

// maxAgents bounds what every event of a chain carries along.
const maxAgents = 1000

// admits refuses an action whose agent would be one too many.
func (s *ChainState) admits(action *Action) error {
	if !action.marker() && len(s.Agents) >= maxAgents && !slices.Contains(s.Agents, action.AgentName) {
		return Errorf(CodeInvalid, "the chain has %d agents, the most it can: open another chain for more", maxAgents)
	}
	return nil
}

// meet counts a marker, and the agent of an action. It copies the name, as all does that
// a chain keeps of an action: a state stays in memory, and a part of a request's text
// would keep the whole request there.
func (s *ChainState) meet(action *Action) {
	if action.marker() {
		s.Markers++
		return
	}
	if !slices.Contains(s.Agents, action.AgentName) {
		s.Agents = append(s.Agents, strings.Clone(action.AgentName))
	}
}

// ActionsTaken counts the actions that were recorded in the chain: its events but for the
// markers.
func (s *ChainState) ActionsTaken() int64 { return s.Actions - s.Markers }

// errUnreadableState says that a stored state cannot be read: it was changed.
var errUnreadableState = errors.New("stored chain state cannot be read")

// ErrStateTampered says that a chain's state is not the one that was stored.
var ErrStateTampered = errors.New("stored record fails its authenticator")

// Encode writes the canonical bytes of the state and their authenticator.
func (s *ChainState) Encode(keys Keys, chain *Chain) (body, mac []byte) {
	w := canon.BeginObject(make([]byte, 0, 512))
	if s.Abandoned {
		w.Bool("abandoned", true)
	}
	w.Int("actions", s.Actions)
	w.Strings("agents", s.Agents)
	w.Int("approvals", s.Approvals)
	if !s.Carried.empty() {
		w.Value(s.Carried.appendTo(w.Name("carried")))
	}
	writeTime(&w, "completed_at", s.CompletedAt)
	if s.ContinuedBy != nil {
		w.String("continued_by", s.ContinuedBy.String())
	}
	w.String("digest", hex.EncodeToString(s.Digest[:]))
	w.Int("entries", s.Entries)
	if s.Failure == nil {
		w.Null("failure")
	} else {
		failure := canon.BeginObject(w.Name("failure"))
		failure.String("message", s.Failure.Message)
		failure.String("type", s.Failure.Type)
		w.Value(failure.End())
	}
	granted := canon.BeginObject(w.Name("granted"))
	granted.Int("actions", s.Granted.Actions)
	granted.Int("at", int64(s.Granted.At))
	if s.Granted.Markers > 0 {
		granted.Int("markers", s.Granted.Markers)
	}
	granted.Int("tokens", s.Granted.Tokens)
	w.Value(granted.End())
	w.String("key_id", keys.CurrentKey())
	w.Int("last_at", int64(s.LastAt))
	if !s.Leases.empty() {
		w.Value(s.Leases.appendTo(w.Name("leases")))
	}
	if s.Markers > 0 {
		w.Int("markers", s.Markers)
	}
	w.Value(s.Metrics.appendExact(w.Name("metrics")))
	w.StringOrNull("pause_reason", s.PauseReason)
	w.String("pending_exposure", s.Pending.Exposure.String())
	w.Int("pending_tokens", s.Pending.Tokens)
	w.String("policy_version", s.PolicyVersion)
	if s.Receipt == nil {
		w.Null("receipt_id")
	} else {
		w.String("receipt_id", s.Receipt.String())
	}
	if s.Revision > 0 {
		w.Int("revision", s.Revision)
	}
	w.String("status", string(s.Status))
	w.Int("tokens", s.Tokens)
	w.Int("waiting", s.Waiting)
	body = w.End()
	sum, _ := stateMAC(keys, keys.CurrentKey(), chain, body)
	return body, sum[:]
}

// stateMAC covers the chain's fixed record along with its state: the id and the
// hash have one length each, so no two states share their bytes.
func stateMAC(keys Keys, keyID string, chain *Chain, body []byte) ([32]byte, bool) {
	hash := chain.Hash()
	return keys.MAC(keyID, chain.Org.UUID, PurposeChainState, chain.ID.UUID[:], hash[:], body)
}

// DecodeChainState reads what Encode wrote and refuses anything else.
func DecodeChainState(body, mac []byte, keys Keys, chain *Chain) (*ChainState, error) {
	v, err := canon.Parse(body)
	if err != nil {
		return nil, errUnreadableState
	}
	f := NewFields(v)
	sum, ok := stateMAC(keys, f.Text("key_id", maxName), chain, body)
	if !ok || !hmac.Equal(sum[:], mac) {
		return nil, ErrStateTampered
	}
	state := &ChainState{
		Revision:      f.Int("revision", 0, maxCount),
		Status:        ChainStatus(f.Text("status", maxName)),
		Actions:       f.Int("actions", 0, maxCount),
		Markers:       f.Int("markers", 0, maxCount),
		Entries:       f.Int("entries", 0, maxCount),
		Agents:        f.Texts("agents", maxCount, maxName),
		Tokens:        f.Int("tokens", 0, maxCount),
		Approvals:     f.Int("approvals", 0, maxCount),
		Waiting:       f.Int("waiting", 0, maxCount),
		Pending:       Held{Tokens: f.Int("pending_tokens", 0, maxCount)},
		PauseReason:   f.Text("pause_reason", maxStored),
		PolicyVersion: f.Text("policy_version", maxName),
		LastAt:        Time(f.Int("last_at", 0, maxCount)),
		CompletedAt:   f.Time("completed_at"),
	}
	digest, err := hex.DecodeString(f.Text("digest", maxName))
	if err != nil || len(digest) != len(state.Digest) {
		return nil, errUnreadableState
	}
	copy(state.Digest[:], digest)
	metrics, _ := f.get("metrics")
	if state.Metrics, err = parseExactMetrics(metrics); err != nil {
		return nil, err
	}
	if text := f.Text("pending_exposure", maxStored); text != "" {
		if state.Pending.Exposure, err = parseExact(text); err != nil {
			return nil, errUnreadableState
		}
	}
	if granted := f.Nested("granted"); granted != nil {
		state.Granted = Allowance{
			Actions: granted.Int("actions", 0, maxCount), Markers: granted.Int("markers", 0, maxCount), Tokens: granted.Int("tokens", 0, maxCount), At: Time(granted.Int("at", 0, maxCount)),
		}
		f.Join(granted)
	}
	if leases := f.Nested("leases"); leases != nil {
		if state.Leases, err = readUsedLeases(leases); err != nil {
			return nil, err
		}
		f.Join(leases)
	}
	if text := f.Text("receipt_id", maxName); text != "" {
		id, err := ParseID(text)
		if err != nil {
			return nil, errUnreadableState
		}
		state.Receipt = &ReceiptID{id}
	}
	if err := state.decodeSuccession(f); err != nil {
		return nil, err
	}
	if failure := f.Nested("failure"); failure != nil {
		state.Failure = &Failure{Type: failure.Text("type", maxName), Message: failure.Text("message", maxStored)}
		f.Join(failure)
	}
	if f.Err() != nil {
		return nil, errUnreadableState
	}
	return state, nil
}

func writeTime(w *canon.ObjectWriter, name string, t *Time) {
	if t == nil {
		w.Null(name)
		return
	}
	w.String(name, t.String())
}
