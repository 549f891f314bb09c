package ledger

import (
	"cmp"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"slices"
	"strconv"
	"strings"
	"time"

	"countersign/internal/canon"
	"countersign/internal/classify"
)

// Leases bound what a client may do after a stop. An allow is valid for LeaseTime, counted by the
// client from when it sent the request. That is before the transaction that granted it, so
// LeaseTime after a stop's transaction no earlier allow is valid any more. LeaseRunOut adds a
// margin for the client's clock and scheduler. That is true of an allow for one action, which is
// its answer alone, and of a Lease, which allows several.
const (
	LeaseTime   = time.Second
	LeaseRunOut = 1250 * time.Millisecond
)

const (
	maxLeaseActions = 100
	// maxLeaseID bounds the texts that are parsed as a lease's id, in bytes.
	maxLeaseID = 400
	// maxUsedLeases bounds the number of leases whose use a chain counts.
	maxUsedLeases = 32
)

// Lease lets a client decide obviously safe actions of one chain.
type Lease struct {
	ID           string
	Milliseconds int64
	MaxActions   int64
	Actions      []string // first words of safe action names
	ExceptAgents []string // agents whose actions the service still decides
}

// leaseGrant is the content of a lease's id.
type leaseGrant struct {
	chain      ChainID
	act        int64   // the organization's last act when it was granted; says so to an auditor, and decides nothing
	serial     uint64  // increases with each lease of a chain
	maxActions int64   // at most maxLeaseActions
	words      uint16  // bits of classify.SafeVerbs
	except     [8]byte // digest of the agents that it does not cover
}

// leaseVersion is the first byte of every id.
const leaseVersion = 1

// leaseBody is the length of a grant before its authenticator, in bytes.
const leaseBody = 1 + 16 + 8 + 8 + 1 + 2 + 8

func (g *leaseGrant) encode() []byte {
	body := make([]byte, 0, leaseBody)
	body = append(body, leaseVersion)
	body = append(body, g.chain.UUID[:]...)
	body = binary.BigEndian.AppendUint64(body, uint64(g.act)) //nolint:gosec // acts are numbered from 1
	body = binary.BigEndian.AppendUint64(body, g.serial)
	body = append(body, byte(g.maxActions)) //nolint:gosec // at most 100
	body = binary.BigEndian.AppendUint16(body, g.words)
	return append(body, g.except[:]...)
}

// id returns the grant with its authenticator, which only the service can compute.
func (g *leaseGrant) id(keys Keys, org OrgID) string {
	body := g.encode()
	return base64.RawURLEncoding.EncodeToString(slices.Concat(body, Authenticate(keys, org, PurposeLease, body)))
}

// readLease parses the id of a lease that was granted to the organization. It returns nil for any
// other text.
func readLease(id string, keys Keys, org OrgID) *leaseGrant {
	if id == "" || len(id) > maxLeaseID {
		return nil
	}
	token, err := base64.RawURLEncoding.DecodeString(id)
	if err != nil || base64.RawURLEncoding.EncodeToString(token) != id || len(token) < leaseBody+sha256.Size || token[0] != leaseVersion {
		return nil
	}
	body, mac := token[:leaseBody], token[leaseBody:]
	if !Authentic(keys, org, PurposeLease, mac, body) {
		return nil
	}
	g := &leaseGrant{
		chain: ChainID{UUID: [16]byte(body[1:17])}, act: int64(binary.BigEndian.Uint64(body[17:25])), //nolint:gosec // as encode wrote it
		serial: binary.BigEndian.Uint64(body[25:33]), maxActions: int64(body[33]), words: binary.BigEndian.Uint16(body[34:36]),
	}
	copy(g.except[:], body[36:])
	return g
}

// allowed returns the first words that the grant covers.
func (g *leaseGrant) allowed() []string {
	var allowed []string
	for bit, verb := range classify.SafeVerbs {
		if g.words&(1<<bit) != 0 {
			allowed = append(allowed, verb)
		}
	}
	return allowed
}

func wordBits(allowed []string) (bits uint16) {
	for bit, verb := range classify.SafeVerbs {
		if slices.Contains(allowed, verb) {
			bits |= 1 << bit
		}
	}
	return bits
}

func exceptAgents(org *Organization, chain *Chain) []string {
	return unite(org.Settings.HighRiskAgents, chain.Limits.HighRiskAgents)
}

func digestOfAgents(agents []string) (digest [8]byte) {
	w := canon.BeginObject(nil)
	w.Strings("agents", agents)
	sum := sha256.Sum256(w.End())
	copy(digest[:], sum[:])
	return digest
}

// Grant lets the client decide obviously safe actions of a chain for a short time. It returns nil
// if the client must ask. It is called in the transaction that has read the organization and the
// chain. The recording's random bytes distinguish leases of the same millisecond.
func (s *ChainState) Grant(r *Recording) *Lease {
	allowed := r.Org.Settings.SafeActions()
	if r.Org.Controls.KillSwitch.Active || s.Status != ChainActive || !r.Chain.FastPath || !r.Policy.FastPath || len(allowed) == 0 {
		return nil
	}
	now := Later(r.Now, s.LastAt)
	milliseconds := min(LeaseTime, s.timeLeft(r, now)).Milliseconds()
	actions := min(maxLeaseActions, r.Org.Settings.AutoPause.MaxEvents-(s.TotalActions()-s.Granted.Actions))
	if milliseconds <= 0 || actions <= 0 {
		return nil
	}
	except := exceptAgents(r.Org, r.Chain)
	grant := leaseGrant{
		chain: r.Chain.ID, act: r.Org.Controls.Act, serial: leaseSerial(now, r.Random), maxActions: actions,
		words: wordBits(allowed), except: digestOfAgents(except),
	}
	return &Lease{
		ID: grant.id(r.Keys, r.Org.ID), Milliseconds: milliseconds, MaxActions: actions,
		Actions: allowed, ExceptAgents: except,
	}
}

// timeLeft returns how long the chain's own limits let it run.
func (s *ChainState) timeLeft(r *Recording, now Time) time.Duration {
	left := max(s.Begun(r.Chain), s.Granted.At).Add(time.Duration(r.Org.Settings.AutoPause.MaxDurationSeconds) * time.Second).Sub(now)
	if limit := r.Chain.Limits.TimeoutSeconds; limit > 0 {
		left = min(left, s.Begun(r.Chain).Add(Milliseconds(int64(limit*1000))).Sub(now))
	}
	return left
}

// leaseSerial orders the leases of a chain by time. The low 20 bits are random.
func leaseSerial(now Time, random [10]byte) uint64 {
	return uint64(now)<<20 | //nolint:gosec // no lease is granted before 1970
		uint64(binary.BigEndian.Uint32(random[:])>>12)
}

// UsedLeases counts the actions that were reported under the leases of a chain. Its size is
// bounded: leases that it has dropped are no longer valid.
type UsedLeases struct {
	Forgotten uint64      // the largest serial that was dropped
	Used      []UsedLease // ordered by serial
}

// UsedLease is the number of actions that were reported under one lease.
type UsedLease struct {
	Serial  uint64
	Actions int64
}

// use counts an action under a lease and reports whether the lease had one left.
func (u *UsedLeases) use(grant *leaseGrant) bool {
	if grant.serial <= u.Forgotten {
		return false
	}
	at, found := slices.BinarySearchFunc(u.Used, grant.serial, func(l UsedLease, serial uint64) int { return cmp.Compare(l.Serial, serial) })
	if !found {
		u.Used = slices.Insert(u.Used, at, UsedLease{Serial: grant.serial})
	}
	if u.Used[at].Actions >= grant.maxActions {
		return false
	}
	u.Used[at].Actions++
	if len(u.Used) > maxUsedLeases {
		u.Forgotten = u.Used[0].Serial
		u.Used = slices.Delete(u.Used, 0, 1)
	}
	return true
}

// covered reports whether a lease let the client decide the reported action, and counts it. A lease
// counts only if it belongs to this chain or one that it continues, is not used up, and covers the
// action. Its age does not matter: the report comes after the action, and only the client knows when
// the action began.
func (s *ChainState) covered(r *Recording) bool {
	action := r.Action
	if action.Source == "" || action.ActionType == ActionTypeGap {
		return false
	}
	grant := readLease(action.LeaseID, r.Keys, r.Org.ID)
	if grant == nil || !r.Chain.in(grant.chain) || !action.obviouslySafe(grant.allowed()) || grant.excepts(r) {
		return false
	}
	return s.Leases.use(grant)
}

// excepts reports whether the lease did not cover the action's agent. If the organization's list
// has changed since, this cannot be determined, and the client, which had the list, is believed.
func (g *leaseGrant) excepts(r *Recording) bool {
	q := Question{Org: &Organization{}, Chain: r.Chain, Action: r.Action}
	if g.except == digestOfAgents(exceptAgents(r.Org, r.Chain)) {
		q.Org = r.Org
	}
	return q.highRisk()
}

// obviouslySafe reports whether the service itself finds nothing in the action except one of the
// allowed first words.
func (a *Action) obviouslySafe(allowed []string) bool {
	said := &a.Facts // includes what the client found
	if len(said.Categories) > 0 || said.Amount != nil || said.AmountUnusable || len(said.ExternalDomains) > 0 || said.RecordsModified != 0 ||
		said.Model != "" || said.Tokens() != 0 {
		return false
	}
	payload, metadata := a.Values()
	facts := classify.Classify(classify.Input{ActionType: a.ActionType, ActionName: a.ActionName, Payload: payload, Metadata: metadata})
	return classify.ObviouslySafe(a.ActionName, allowed, facts, classify.Opaque(payload) || classify.Opaque(metadata))
}

// texts returns the counts in their stored form: serial and actions.
func (u *UsedLeases) texts() []string {
	texts := make([]string, 0, len(u.Used))
	for _, lease := range u.Used {
		texts = append(texts, strconv.FormatUint(lease.Serial, 16)+":"+strconv.FormatInt(lease.Actions, 10))
	}
	return texts
}

func (u *UsedLeases) empty() bool { return u.Forgotten == 0 && len(u.Used) == 0 }

func (u *UsedLeases) appendTo(dst []byte) []byte {
	w := canon.BeginObject(dst)
	w.String("forgotten", strconv.FormatUint(u.Forgotten, 16))
	w.Strings("used", u.texts())
	return w.End()
}

func (r *recordReader) usedLeases() UsedLeases {
	nested := r.nested("leases")
	if nested == nil {
		return UsedLeases{}
	}
	number := func(text string, base int) uint64 {
		n, err := strconv.ParseUint(text, base, 64)
		nested.failed = nested.failed || err != nil
		return n
	}
	leases := UsedLeases{Forgotten: number(nested.Text("forgotten", maxName), 16)}
	for _, text := range nested.Texts("used", maxUsedLeases, maxName) {
		serial, actions, _ := strings.Cut(text, ":")
		leases.Used = append(leases.Used, UsedLease{Serial: number(serial, 16), Actions: int64(number(actions, 10))}) //nolint:gosec // at most maxLeaseActions
	}
	r.join(nested)
	return leases
}
