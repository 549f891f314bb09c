package ledger

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"slices"

	"countersign/internal/canon"
)

// ChainStatus is the status of a chain. The last two are sealed.
type ChainStatus string

// The statuses of a chain.
const (
	ChainActive     ChainStatus = "active"
	ChainAutoPaused ChainStatus = "auto_paused"
	ChainCompleted  ChainStatus = "completed"
	ChainFailed     ChainStatus = "failed"
)

// ChainStatuses lists all statuses.
var ChainStatuses = []ChainStatus{ChainActive, ChainAutoPaused, ChainCompleted, ChainFailed}

// Sealed reports whether nothing more can be recorded.
func (s ChainStatus) Sealed() bool { return s == ChainCompleted || s == ChainFailed }

// Chain is what is fixed when a chain is opened. It never changes, so it can be cached for any
// time. What changes is its ChainState.
type Chain struct {
	ID                ChainID
	Org               OrgID
	OpenedBy          KeyID
	Name              string
	ExternalID        string
	Environment       string
	Metadata          []byte       // canonical object, or nil
	PolicyConfig      []byte       // canonical object, or nil
	Limits            ClientLimits // parsed from PolicyConfig
	FallbackApprovers []string
	FailModes         []byte // canonical object; the organization's at opening
	FastPath          bool
	StartedAt         Time
	IdempotencyKey    string // of the opening request; may be ""
	BindingKeyID      string // the master key that BindingKey is derived from; "" for chains that predate it
	// Continues lists the chains that this one continues, oldest first. Each was sealed as
	// abandoned before the next was opened. It is empty for a chain that a client opened.
	Continues []ChainID

	stored *[32]byte // hash of the bytes it was decoded from; nil if it is not stored yet
}

// DefaultEnvironment is the environment of a chain that names none.
const DefaultEnvironment = "production"

// ParseChainRequest reads the body of a request that opens a chain. The service sets ids, owner and
// time.
func ParseChainRequest(v canon.Value) (*Chain, error) {
	f := canon.NewFields(v)
	f.Ignore("organization_id")
	chain := &Chain{
		ExternalID:        f.FilledText("external_chain_id", maxName),
		Environment:       f.Name("environment", maxName),
		Metadata:          f.Object("metadata", maxMetadata),
		FallbackApprovers: parseAddresses(f, "fallback_approvers"),
	}
	switch {
	case f.Has("name"):
		chain.Name = f.RequiredName("name", maxName)
	case !f.Has("external_chain_id"):
		f.Fault("name", "is required (or external_chain_id, which then serves as the name)")
	default:
		chain.Name = f.SingleLine("external_chain_id", chain.ExternalID)
	}
	if chain.Environment == "" {
		chain.Environment = DefaultEnvironment
	}
	if config := f.Nested("policy_config"); config != nil {
		chain.Limits = parseClientLimits(config)
		f.Join(config)
		chain.PolicyConfig = config.Canonical()
		if notify := chain.Limits.Notify; len(notify) > 0 {
			chain.FallbackApprovers = unite(chain.FallbackApprovers, notify)
		}
	}
	if err := f.Err(); err != nil {
		return nil, err
	}
	return chain, nil
}

// SameRequest reports whether two chains come from identical requests, that is, a request was
// repeated with its idempotency key.
func (c *Chain) SameRequest(other *Chain) bool {
	return c.Name == other.Name && c.ExternalID == other.ExternalID && c.Environment == other.Environment &&
		bytes.Equal(c.Metadata, other.Metadata) && bytes.Equal(c.PolicyConfig, other.PolicyConfig) &&
		slices.Equal(c.FallbackApprovers, other.FallbackApprovers)
}

// Encode returns the canonical bytes that are stored.
func (c *Chain) Encode() []byte {
	w := canon.BeginObject(make([]byte, 0, 512))
	if c.BindingKeyID != "" {
		w.String("binding_key_id", c.BindingKeyID)
	}
	c.encodeContinues(&w)
	w.String("environment", c.Environment)
	w.StringOrNull("external_chain_id", c.ExternalID)
	w.Raw("fail_modes", c.FailModes)
	w.Strings("fallback_approvers", c.FallbackApprovers)
	w.Bool("fast_path", c.FastPath)
	writeID(&w, "id", c.ID.UUID)
	w.StringOrNull("idempotency_key", c.IdempotencyKey)
	w.Raw("metadata", c.Metadata)
	w.String("name", c.Name)
	writeID(&w, "opened_by", c.OpenedBy.UUID)
	writeID(&w, "organization_id", c.Org.UUID)
	w.Raw("policy_config", c.PolicyConfig)
	writeTime(&w, "started_at", c.StartedAt)
	return w.End()
}

// Hash returns the hash that the state's authenticator covers, so that the chain's fixed part
// cannot be changed either.
func (c *Chain) Hash() [32]byte {
	if c.stored != nil {
		return *c.stored
	}
	return sha256.Sum256(c.Encode())
}

var errUnreadableChain = errors.New("stored chain cannot be read")

// DecodeChain decodes the result of Encode.
func DecodeChain(body []byte) (*Chain, error) {
	r, err := openRecord(body)
	if err != nil {
		return nil, errUnreadableChain
	}
	chain := &Chain{
		ID: ChainID{r.id("id")}, Org: OrgID{r.id("organization_id")}, OpenedBy: KeyID{r.id("opened_by")},
		Name:              r.Text("name", maxName),
		ExternalID:        r.Text("external_chain_id", maxName),
		Environment:       r.Text("environment", maxName),
		Metadata:          r.Object("metadata", maxMetadata),
		FallbackApprovers: r.Texts("fallback_approvers", maxListed, maxText),
		FailModes:         r.Object("fail_modes", len(body)),
		FastPath:          r.Bool("fast_path"),
		StartedAt:         r.time("started_at"),
		IdempotencyKey:    r.Text("idempotency_key", MaxIdempotencyKey),
		BindingKeyID:      r.Text("binding_key_id", maxName),
		Continues:         r.continues(),
	}
	if config := r.Nested("policy_config"); config != nil {
		chain.Limits = parseClientLimits(config)
		r.Join(config)
		chain.PolicyConfig = config.Canonical()
	}
	if !r.readable() {
		return nil, errUnreadableChain
	}
	hash := sha256.Sum256(body)
	chain.stored = &hash
	return chain, nil
}
