package ledger

// Outcome is a policy's verdict on an action.
type Outcome string

// The outcomes, mildest first.
const (
	Allow           Outcome = "allow"
	AllowWithFlag   Outcome = "allow_with_flag"
	RequireApproval Outcome = "require_approval"
	Deny            Outcome = "deny"
)

func (o Outcome) status() EventStatus {
	switch o {
	case Allow:
		return EventAllowed
	case AllowWithFlag:
		return EventFlagged
	case RequireApproval:
		return EventAwaiting
	default:
		return EventDenied
	}
}

// Source says who decided.
type Source string

// The sources of a decision.
const (
	SourceBackend   Source = "backend_evaluation"
	SourceFastPath  Source = "local_fast_path"
	SourceHuman     Source = "human_approval"
	SourceOfflineOK Source = "offline_stub"
)

// Mode says whether a policy acts or only reports what it would have done.
type Mode string

// The modes of evaluation.
const (
	Enforce Mode = "enforce"
	Shadow  Mode = "shadow"
)

// The categories that an action can have.
const (
	CategoryFinancial             = "financial"
	CategoryExternalCommunication = "external_communication"
	CategoryDataModification      = "data_modification"
	CategoryLLM                   = "llm"
)

// Facts are what the service finds in an action, before it decides.
type Facts struct {
	Categories      []string
	Amount          *Money
	ExternalDomains []string
	RecordsModified int64
}

// Classify finds the facts of an action.
func Classify(*Action) Facts { return Facts{} }

// Decision is the verdict on one action, with its reasons.
type Decision struct {
	Outcome          Outcome
	Reason           string
	Source           Source
	PolicyName       string
	PolicyVersion    string
	KillSwitchActive bool
	PauseReason      string
	Remediation      string
	DocsURL          string
	Mode             Mode
	Shadow           Outcome
	EstimatedCost    *Money
	AutoPaused       bool
}

// Policy is what an action is held against.
type Policy struct {
	Version string
}

// BuiltinPolicy is the policy of an organization that has put none of its own.
// Its version is the hash of the empty rule set.
var BuiltinPolicy = Policy{Version: "v0+" + PayloadHash([]byte(`{"rules":[]}`))[:12]}

// Decide holds an action against a policy. It is the one place where an action
// is decided, whoever asks.
func Decide(policy Policy, _ *Chain, _ *ChainState, _ *Action, _ Facts) Decision {
	return Decision{Outcome: Allow, Source: SourceBackend, PolicyVersion: policy.Version, Mode: Enforce}
}

func readDecision(f *Fields) Decision {
	return Decision{
		Outcome:          Outcome(f.Text("policy_decision", maxName)),
		Reason:           f.Text("decision_reason", maxText),
		Source:           Source(f.Text("decision_source", maxName)),
		PolicyName:       f.Text("policy_name", maxName),
		PolicyVersion:    f.Text("policy_version", maxName),
		KillSwitchActive: f.Bool("kill_switch_active"),
		PauseReason:      f.Text("pause_reason", maxText),
		Remediation:      f.Text("remediation", maxText),
		DocsURL:          f.Text("docs_url", maxText),
		Mode:             Mode(f.Text("evaluation_mode", maxName)),
		Shadow:           Outcome(f.Text("shadow_decision", maxName)),
		EstimatedCost:    readMoney(f, "estimated_cost_usd"),
		AutoPaused:       f.Bool("auto_paused"),
	}
}
