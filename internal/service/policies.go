package service

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"

	"countersign/internal/cache"
	"countersign/internal/canon"
	"countersign/internal/evidence"
	"countersign/internal/fault"
	"countersign/internal/ledger"
	"countersign/internal/policy"
	"countersign/internal/store"
)

// policyService stores, compiles and evaluates policy sets.
type policyService struct {
	*shared
	findings    *findingService
	policyCache policyCache
	examining   orgLocks // held while rules examine an action
	compiling   orgLocks // held while a policy set is compiled
	simulating  orgLocks // held while a simulation runs
	// examiningLarge is a semaphore: it holds a value for each large action that is being
	// examined.
	examiningLarge chan struct{}
}

// PolicyDocument is the source text of a policy set.
type PolicyDocument struct {
	Text []byte
	YAML bool
}

func (d *PolicyDocument) format() (policy.Format, string) {
	if d.YAML {
		return policy.YAML, "yaml"
	}
	return policy.JSON, "json"
}

// compile compiles a document, or reports all of its problems with their positions.
func (d *PolicyDocument) compile() (*policy.Set, error) {
	format, _ := d.format()
	set, err := policy.Parse(d.Text, format)
	var refused *policy.Error
	if errors.As(err, &refused) {
		invalid := &fault.Error{Code: fault.CodeInvalid, Message: "the policy set is refused, and the one in force stays: each problem is named in errors"}
		for _, problem := range refused.Problems {
			invalid.Fields = append(invalid.Fields, fault.FieldError{Pointer: "", Detail: problem.String()})
		}
		return nil, invalid
	}
	return set, err
}

// compileFor is compile for an organization. It compiles one document of an organization at a
// time, because a large one takes a second.
func (s *policyService) compileFor(ctx context.Context, org ledger.OrgID, document *PolicyDocument) (*policy.Set, error) {
	done, err := s.compiling.lock(ctx, org)
	if err != nil {
		return nil, visible(err)
	}
	defer done()
	return document.compile()
}

// PolicyView is a stored policy set, or the built-in defaults.
type PolicyView struct {
	*store.PolicyRecord
	Rules     []policy.Rule // nil in a list
	RuleCount int
	FastPath  bool
	InForce   bool
	// Settings are the settings that the version covers; nil for the version of the set
	// alone, and in a list.
	Settings *ledger.Settings
}

// named sets the version of a view, and returns the view.
func (v *PolicyView) named(version string) *PolicyView {
	record := *v.PolicyRecord
	record.Version = version
	v.PolicyRecord = &record
	return v
}

// CheckPolicy compiles a document without storing it.
func (s *policyService) CheckPolicy(ctx context.Context, caller *Caller, document *PolicyDocument) (*policy.Set, error) {
	if err := s.authorize(ctx, caller, ledger.RoleMember); err != nil {
		return nil, err
	}
	set, err := s.compileFor(ctx, caller.Org, document)
	if err != nil || len(set.Budgets()) == 0 {
		return set, err
	}
	org, err := s.organization(ctx, caller.Org)
	if err == nil {
		err = readBudgets(&org.Settings, set.Budgets(), "", setBudgetFirst)
	}
	if err != nil {
		return nil, err
	}
	return set, nil
}

const setBudgetFirst = "set it under budgets in the organization's settings first"

// PutPolicy puts a policy set in force for the next action on every replica. It returns once
// no action that was allowed before can begin. Putting the set that is in force changes
// nothing.
func (s *policyService) PutPolicy(ctx context.Context, caller *Caller, document *PolicyDocument) (*PolicyView, error) {
	if err := caller.require(ledger.RoleAdmin); err != nil {
		return nil, err
	}
	set, err := s.compileFor(ctx, caller.Org, document)
	if err != nil {
		return nil, err
	}
	return s.putPolicy(ctx, caller, document, set, nil)
}

// ReplacePolicy is PutPolicy for a set that was written while a certain set was in force. It fails if
// another one is by now. The number is that of the set to replace, or 0 if there was none.
func (s *policyService) ReplacePolicy(ctx context.Context, caller *Caller, document *PolicyDocument, number int64) (*PolicyView, error) {
	if err := caller.require(ledger.RoleAdmin); err != nil {
		return nil, err
	}
	set, err := s.compileFor(ctx, caller.Org, document)
	if err != nil {
		return nil, err
	}
	return s.putPolicy(ctx, caller, document, set, &number)
}

// putPolicy puts a compiled set in force. If replaces is not nil, it refuses to replace another set than
// the one with that number.
func (s *policyService) putPolicy(ctx context.Context, caller *Caller, document *PolicyDocument, set *policy.Set, replaces *int64) (*PolicyView, error) {
	_, format := document.format()
	var record *store.PolicyRecord
	var settings ledger.Settings
	var version string
	err := s.governStop(ctx, caller, func(b *batch, org *ledger.Organization) (_ *auditEntry, err error) {
		defer func() { settings, version = org.Settings, org.PolicyVersion() }()
		if err := readBudgets(&org.Settings, set.Budgets(), "", setBudgetFirst); err != nil {
			return nil, err
		}
		current := org.Controls.Policy
		if current.Number > 0 && current.Version == ledger.PolicyVersion(current.Number, set.Canonical()) {
			record, err = b.policyRecord(org.ID, current.Number)
			return nil, err
		}
		switch {
		case replaces == nil || *replaces == current.Number:
		case *replaces == 0:
			return nil, errNotFirstPolicy
		default:
			return nil, errOtherPolicy
		}
		number := current.Number + 1
		record = &store.PolicyRecord{
			Org: org.ID, Number: number, Version: ledger.PolicyVersion(number, set.Canonical()),
			Format: format, Document: document.Text, CreatedAt: b.now, CreatedBy: caller.Name,
		}
		org.Controls.Policy = ledger.PolicyRef{Number: number, Version: record.Version, SHA256: ledger.PayloadHash(document.Text)}
		b.changes.NewPolicies = append(b.changes.NewPolicies, record)
		put := compiled(record.Version, set)
		s.policyCache.put(org.ID, record, put)
		b.policies[policyKey{org.ID, record.Version}] = put
		return policyAuditEntry(current.Version, record), nil
	})
	if err != nil {
		return nil, err
	}
	view := viewOf(record, set, true)
	view.Settings = &settings
	return view.named(version), nil
}

// policyAuditEntry describes a set with the hash of its document and the version that it
// replaces.
func policyAuditEntry(from string, record *store.PolicyRecord) *auditEntry {
	return &auditEntry{action: evidence.ActPutPolicy, target: record.Version, detail: details(func(w *canon.ObjectWriter) {
		w.String("format", record.Format)
		w.String("sha256", ledger.PayloadHash(record.Document))
		writeChange(w, "version", from, record.Version)
	})}
}

// described is a policy set, compiled or only parsed.
type described interface {
	Rules() []policy.Rule
	FastPath() (allowed, given bool)
}

func viewOf(record *store.PolicyRecord, set described, inForce bool) *PolicyView {
	allowed, _ := set.FastPath()
	rules := set.Rules()
	return &PolicyView{PolicyRecord: record, Rules: rules, RuleCount: len(rules), FastPath: allowed, InForce: inForce}
}

// summary returns the view without the document and the rules, so that a list of large sets
// does not hold all of them in memory.
func (v *PolicyView) summary() *PolicyView {
	record := *v.PolicyRecord
	record.Document = nil
	return &PolicyView{PolicyRecord: &record, RuleCount: v.RuleCount, FastPath: v.FastPath, InForce: v.InForce}
}

// Policies lists the stored sets, newest first, and returns the version in force. Documents
// and rules are omitted. It builds one list of an organization at a time.
func (s *policyService) Policies(ctx context.Context, caller *Caller, before int64, limit int) ([]*PolicyView, *ledger.Policy, error) {
	if err := s.authorize(ctx, caller, ledger.RoleMember); err != nil {
		return nil, nil, err
	}
	org, err := s.organization(ctx, caller.Org)
	if err != nil {
		return nil, nil, err
	}
	done, err := s.compiling.lock(ctx, caller.Org)
	if err != nil {
		return nil, nil, visible(err)
	}
	defer done()
	records, err := s.store.Policies(ctx, caller.Org, before, limit)
	if err != nil {
		return nil, nil, visible(err)
	}
	views := make([]*PolicyView, 0, len(records))
	for _, record := range records {
		if record.Tampered {
			views = append(views, &PolicyView{PolicyRecord: record, InForce: record.Number == org.Controls.Policy.Number})
			continue
		}
		set, err := evidence.OutlinePolicy(record)
		if err != nil {
			return nil, nil, visible(err)
		}
		view := viewOf(record, set, record.Number == org.Controls.Policy.Number).summary()
		if view.InForce {
			view = view.named(org.PolicyVersion())
		}
		views = append(views, view)
	}
	return views, &ledger.Policy{Version: org.PolicyVersion()}, nil
}

// Policy returns a set by its version: that of the set alone, or the one in decisions and
// receipts, which also covers the settings at that time.
func (s *policyService) Policy(ctx context.Context, caller *Caller, version string) (*PolicyView, error) {
	if err := s.authorize(ctx, caller, ledger.RoleMember); err != nil {
		return nil, err
	}
	org, err := s.organization(ctx, caller.Org)
	if err != nil {
		return nil, err
	}
	view, err := s.policySet(ctx, org, version)
	if err != nil {
		return nil, visible(err)
	}
	view.Settings = &org.Settings
	if version != org.PolicyVersion() {
		if view.Settings, err = s.settingsOfVersion(ctx, org, version, view.Version); err != nil {
			return nil, visible(err)
		}
		view.InForce = view.InForce && view.Settings == nil
	}
	return view.named(version), nil
}

// policySet returns the set with the number in a version, whichever settings the version
// covers.
func (s *policyService) policySet(ctx context.Context, org *ledger.Organization, version string) (*PolicyView, error) {
	number, digits, _ := strings.Cut(strings.TrimPrefix(version, "v"), "+")
	n, err := strconv.ParseInt(number, 10, 64)
	if err != nil || n < 0 || fmt.Sprintf("v%d+%s", n, digits) != version {
		return nil, fault.ErrNotFound
	}
	if n == 0 {
		return &PolicyView{
			PolicyRecord: &store.PolicyRecord{Org: org.ID, Version: ledger.BuiltinPolicy.Version, Format: "json", Document: []byte(`{"rules":[]}`), CreatedAt: org.CreatedAt},
			Rules:        []policy.Rule{}, FastPath: true, InForce: org.Controls.Policy.Number == 0,
		}, nil
	}
	record, err := s.store.Policy(ctx, org.ID, n)
	if err != nil {
		return nil, err
	}
	set, err := evidence.OutlinePolicy(record)
	if err != nil {
		return nil, err
	}
	return viewOf(record, set, n == org.Controls.Policy.Number), nil
}

// settingsOfVersion returns the settings that a version covers; nil for the version of the set
// alone. It searches all settings that the organization ever had, according to the audit log,
// and returns ErrNotFound if none leads to the version.
func (s *policyService) settingsOfVersion(ctx context.Context, org *ledger.Organization, version, set string) (*ledger.Settings, error) {
	if version == set {
		return nil, nil
	}
	if org.Settings.Names(version, set) {
		return &org.Settings, nil
	}
	done, err := s.compiling.lock(ctx, org.ID) // one at a time: this reads the whole audit log
	if err != nil {
		return nil, err
	}
	defer done()
	var past ledger.PastSettings
	err = s.store.ScanActs(ctx, org.ID, past.Step)
	if err != nil {
		return nil, err
	}
	return past.Find(&org.Settings, version, set)
}

// PolicyCoverage counts the organizations, and those without a policy set.
func (s *policyService) PolicyCoverage(ctx context.Context) (organizations, underDefaults int, err error) {
	orgs, err := s.findings.organizations(ctx)
	if err != nil {
		return 0, 0, err
	}
	for _, org := range orgs {
		if org.Controls.Policy.Number == 0 {
			underDefaults++
		}
	}
	return len(orgs), underDefaults, nil
}

// policyCache caches the newest compiled sets of each organization. The rules of a version
// never change, so no entry is ever stale.
type policyCache struct {
	mu   sync.Mutex // held by writers, which replace an entry based on the previous one
	kept *cache.Cache[ledger.OrgID, *keptPolicies]
}

// keptPolicies are the cached sets of one organization. They are immutable.
type keptPolicies struct {
	sets    []keptPolicy   // newest first
	inForce *ledger.Policy // when an action was last decided; a hint, nil if unknown
}

type keptPolicy struct {
	policy  *ledger.Policy
	version string // of the set alone
	bytes   int    // estimated size
}

type policyKey struct {
	org     ledger.OrgID
	version string
}

const (
	// policyCacheBytes bounds the cache of compiled sets, in bytes.
	policyCacheBytes = 96 << 20
	// maxKeptPolicies is how many sets of one organization are cached: the one in force, and
	// the one before it, which other replicas may still use.
	maxKeptPolicies = 2
	// compiledBytes estimates the size of a compiled set, in bytes per byte of its document.
	compiledBytes = 40
)

func newPolicyCache() policyCache {
	return policyCache{kept: cache.New[ledger.OrgID, *keptPolicies](policyCacheBytes)}
}

func (c *policyCache) get(org ledger.OrgID, version string) *ledger.Policy {
	kept, ok := c.kept.Get(org)
	if !ok {
		return nil
	}
	for _, set := range kept.sets {
		if set.version == version {
			return set.policy
		}
	}
	return nil
}

func (c *policyCache) put(org ledger.OrgID, record *store.PolicyRecord, p *ledger.Policy) {
	c.mu.Lock()
	defer c.mu.Unlock()
	after := &keptPolicies{sets: []keptPolicy{{p, record.Version, compiledBytes * len(record.Document)}}}
	if before, ok := c.kept.Get(org); ok {
		after.inForce = before.inForce
		for _, set := range before.sets {
			if set.version != record.Version && len(after.sets) < maxKeptPolicies {
				after.sets = append(after.sets, set)
			}
		}
	}
	c.keep(org, after)
}

func (c *policyCache) keep(org ledger.OrgID, kept *keptPolicies) {
	bytes := 0
	for _, set := range kept.sets {
		bytes += set.bytes
	}
	c.kept.Put(org, kept, bytes)
}

// inForce returns the set that was in force when an action of the organization was last
// decided; nil if unknown.
func (c *policyCache) inForce(org ledger.OrgID) *ledger.Policy {
	if kept, ok := c.kept.Get(org); ok {
		return kept.inForce
	}
	return nil
}

// noteInForce records the set under which an action is being decided.
func (c *policyCache) noteInForce(org ledger.OrgID, p *ledger.Policy) {
	if known := c.inForce(org); known != nil && known.Version == p.Version && known.Rules == p.Rules {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if kept, ok := c.kept.Get(org); ok {
		c.keep(org, &keptPolicies{sets: kept.sets, inForce: p})
	}
}

// notCompiled reports that the set in force is not cached: another process stored it, or it
// was evicted. Compiling may take a second, so it is done outside the transaction, and the
// operation is retried.
type notCompiled struct {
	record *store.PolicyRecord
}

func (e *notCompiled) Error() string { return "policy " + e.record.Version + " is not compiled" }

// policy returns the set in force for an organization, including earlier changes of this
// batch. Nothing is decided without it, so an error must end the operation. Call it before the
// operation changes the batch. Operations replace an organization and never change it, so its
// policy is derived once for all operations of the batch.
func (b *batch) policy(org *ledger.Organization) (*ledger.Policy, error) {
	if p := b.inForce[org]; p != nil {
		return p, nil
	}
	p, err := b.policySet(org)
	if err != nil {
		return nil, err
	}
	p = p.Under(&org.Settings)
	b.inForce[org] = p
	return p, nil
}

// policyRecord reads a policy set inside the transaction.
func (b *batch) policyRecord(org ledger.OrgID, number int64) (*store.PolicyRecord, error) {
	record, err := b.loaded.Policy(org, number)
	if err != nil && !errors.Is(err, store.ErrNotFound) && !errors.Is(err, ledger.ErrStateTampered) {
		b.broken = err
	}
	return record, err
}

// policySet is policy before the settings are applied to it.
func (b *batch) policySet(org *ledger.Organization) (*ledger.Policy, error) {
	key := policyKey{org.ID, org.Controls.Policy.Version}
	if p := b.policies[key]; p != nil {
		return p, nil
	}
	p, record, err := b.service.knownPolicy(org, b.policyRecord)
	switch {
	case err != nil:
		return nil, err
	case p == nil:
		return nil, &notCompiled{record}
	}
	b.policies[key] = p // for the other operations of the batch, even if it is evicted
	return p, nil
}

// knownPolicy returns an organization's set, before the settings are applied to it. If it is
// not cached, it returns the record to be compiled.
func (s *policyService) knownPolicy(org *ledger.Organization, read func(ledger.OrgID, int64) (*store.PolicyRecord, error)) (*ledger.Policy, *store.PolicyRecord, error) {
	ref := org.Controls.Policy
	if ref.Number == 0 {
		return ledger.BuiltinPolicy, nil, nil
	}
	if p := s.policyCache.get(org.ID, ref.Version); p != nil {
		return p, nil, nil
	}
	record, err := read(org.ID, ref.Number)
	if errors.Is(err, store.ErrNotFound) || (err == nil && (record.Version != ref.Version || ledger.PayloadHash(record.Document) != ref.SHA256)) {
		return nil, nil, fmt.Errorf("the policy set in force is missing or was changed: %w", ledger.ErrStateTampered)
	}
	return nil, record, err
}

// policyInForce returns an organization's set, and compiles it if it is not cached. It must not
// be called inside a transaction.
func (s *policyService) policyInForce(ctx context.Context, org *ledger.Organization) (*ledger.Policy, error) {
	p, record, err := s.knownPolicy(org, func(id ledger.OrgID, number int64) (*store.PolicyRecord, error) {
		return s.store.Policy(ctx, id, number)
	})
	if err == nil && p == nil {
		p, err = s.compileStored(ctx, record)
	}
	if err != nil {
		return nil, err
	}
	return p.Under(&org.Settings), nil
}

// compileStored compiles a stored set and caches it. It compiles one set of an organization at
// a time.
func (s *policyService) compileStored(ctx context.Context, record *store.PolicyRecord) (*ledger.Policy, error) {
	done, err := s.compiling.lock(ctx, record.Org)
	if err != nil {
		return nil, err
	}
	defer done()
	if p := s.policyCache.get(record.Org, record.Version); p != nil {
		return p, nil // another caller has compiled it
	}
	set, err := evidence.ReadPolicy(record)
	if err != nil {
		return nil, err
	}
	p := compiled(record.Version, set)
	s.policyCache.put(record.Org, record, p)
	return p, nil
}

// CompilePolicy compiles a document as if it were the first set of an organization.
func CompilePolicy(document *PolicyDocument) (*ledger.Policy, error) {
	set, err := document.compile()
	if err != nil {
		return nil, err
	}
	return compiled(ledger.PolicyVersion(1, set.Canonical()), set), nil
}

func compiled(version string, set *policy.Set) *ledger.Policy {
	allowed, _ := set.FastPath()
	return &ledger.Policy{Version: version, Rules: newRuleSet(set), FastPath: allowed, Budgets: set.Budgets()}
}

// ruleSet implements ledger.Rules with an organization's rules.
type ruleSet struct {
	set *policy.Set
	// metadata reports that a rule may read the chain's metadata. Otherwise it is not parsed.
	metadata bool
}

func newRuleSet(set *policy.Set) ruleSet {
	r := ruleSet{set: set}
	for _, rule := range set.Rules() {
		// An index expression can compose the name, as in dyn(chain)["meta" + "data"].
		r.metadata = r.metadata || strings.Contains(rule.When, "metadata") || strings.Contains(rule.When, "[")
	}
	return r
}

// Examine implements ledger.Rules.
func (r ruleSet) Examine(a *ledger.Action) {
	var in policy.Input
	describeAction(&in, a)
	in.Payload, in.Metadata = a.Values()
	in.Step = new(pacer).step
	a.Examined = r.set.Examine(&in)
}

// Examined implements ledger.Rules.
func (r ruleSet) Examined(a *ledger.Action) bool {
	examined, _ := a.Examined.(*policy.Examined)
	return examined.Of(r.set)
}

// Match implements ledger.Rules.
func (r ruleSet) Match(q *ledger.Question) []ledger.Match {
	if !r.Examined(q.Action) {
		r.Examine(q.Action)
	}
	in := policyInput(q)
	if r.set.StateReadsAction() {
		in.Payload, in.Metadata = q.Action.Values()
	}
	if r.metadata {
		in.ChainMetadata = metadataOf(q.Chain)
	}
	if len(r.set.Budgets()) > 0 {
		in.Budgets = budgetsLeft(q)
	}
	hits := r.set.Match(in, q.Action.Examined.(*policy.Examined))
	if len(hits) == 0 {
		return nil
	}
	matches := make([]ledger.Match, 0, len(hits))
	for _, hit := range hits {
		m := ledger.Match{
			Name: hit.Rule.Name, Outcome: ledger.Outcome(hit.Rule.Decision), Reason: hit.Rule.Reason,
			Remediation: hit.Rule.Remediation, DocsURL: hit.Rule.DocsURL,
			Shadow: hit.Rule.Mode == string(ledger.Shadow), Approvers: hit.Rule.Approvers,
		}
		if hit.Failed != nil {
			m.Outcome, m.Approvers = ledger.Deny, nil
			m.Reason = "the rule could not be evaluated, which counts as deny: " + hit.Failed.Error()
		}
		matches = append(matches, m)
	}
	return matches
}

func policyInput(q *ledger.Question) *policy.Input {
	in := &policy.Input{
		ChainName: q.Chain.Name, Environment: q.Chain.Environment,
		TotalActions: q.State.TotalActions(), FinancialExposureUSD: q.State.TotalExposure().Float(),
		Tokens: q.State.TotalTokens(), AgeSeconds: float64(q.Now-q.State.Begun(q.Chain)) / 1000, OrgSlug: q.Org.Slug,
	}
	describeAction(in, q.Action)
	return in
}

// describeAction sets the input's fields about the action, except for its payload and
// metadata.
func describeAction(in *policy.Input, a *ledger.Action) {
	in.AgentName, in.ParentAgentName, in.ActionType, in.ActionName = a.AgentName, a.ParentAgentName, a.ActionType, a.ActionName
	in.Categories, in.ExternalDomains, in.RecordsModified = a.Facts.Categories, a.Facts.DomainForms(), a.Facts.RecordsModified
	if a.Facts.Amount != nil {
		in.AmountUSD, in.HasAmount = a.Facts.Amount.Float(), true
	}
}

// budgetsLeft returns what is left of each budget for the action's subject: the whole limit of
// a budget that does not apply to it.
func budgetsLeft(q *ledger.Question) map[string]float64 {
	left := make(map[string]float64, len(q.Org.Settings.Budgets))
	for i := range q.Org.Settings.Budgets {
		b := &q.Org.Settings.Budgets[i]
		left[b.Name] = b.Limit().Float()
	}
	for i := range q.Standings {
		b := q.Standings[i].Budget
		left[b.Name] = b.Left(q.Standings[i].Counter).Float()
	}
	return left
}

func metadataOf(chain *ledger.Chain) canon.Value {
	if len(chain.Metadata) == 0 {
		return canon.Value{}
	}
	v, err := canon.Parse(chain.Metadata)
	if err != nil {
		return canon.Value{} // cannot happen: the chain is authentic, and its metadata canonical
	}
	return v
}

// StarterPack names the policy set that is offered to an organization without one.
const StarterPack = "starter"

// PolicyPack returns a policy set that comes with the program.
func (s *policyService) PolicyPack(ctx context.Context, caller *Caller, name string) (*PolicyView, error) {
	if err := s.authorize(ctx, caller, ledger.RoleMember); err != nil {
		return nil, err
	}
	document, set, err := s.compilePack(ctx, caller, name)
	if err != nil {
		return nil, err
	}
	_, format := document.format()
	return viewOf(&store.PolicyRecord{Org: caller.Org, Format: format, Document: document.Text}, set, false), nil
}

// PutFirstPolicyPack puts a pack in force in an organization that has no policy set. It never
// replaces a set: one may have been stored since the pack was offered.
func (s *policyService) PutFirstPolicyPack(ctx context.Context, caller *Caller, name string) (*PolicyView, error) {
	if err := caller.require(ledger.RoleAdmin); err != nil {
		return nil, err
	}
	document, set, err := s.compilePack(ctx, caller, name)
	if err != nil {
		return nil, err
	}
	return s.putPolicy(ctx, caller, document, set, new(int64))
}

var (
	errNotFirstPolicy = fault.Errorf(fault.CodePolicyChanged, "the organization has a policy set by now, and it was not replaced; put the new set explicitly to replace it")
	errOtherPolicy    = fault.Errorf(fault.CodePolicyChanged, "another policy set was put in force meanwhile, and it was not replaced; put the new set again to replace it")
)

func (s *policyService) compilePack(ctx context.Context, caller *Caller, name string) (*PolicyDocument, *policy.Set, error) {
	text, ok := policy.Pack(name)
	if !ok {
		return nil, nil, fault.Errorf(fault.CodeNotFound, "no policy set of this name comes with the program")
	}
	document := &PolicyDocument{Text: text, YAML: true}
	set, err := s.compileFor(ctx, caller.Org, document)
	return document, set, err
}

// OrganizationsWithoutPolicy lists the slugs of the organizations that have no policy set.
func (o *Operator) OrganizationsWithoutPolicy(ctx context.Context) (slugs []string, err error) {
	orgs, err := o.Organizations(ctx)
	if err != nil {
		return nil, err
	}
	for _, org := range orgs {
		if org.Controls.Policy.Number == 0 {
			slugs = append(slugs, org.Slug)
		}
	}
	return slugs, nil
}
