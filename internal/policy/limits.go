package policy

// Limits of a document. A set is evaluated for every action, and the parts that read the chain are
// evaluated on the write path that all requests share, so each limit also bounds how long others
// wait.
const (
	// MaxDocument is the maximum size of a document in bytes.
	MaxDocument = 256 << 10
	// MaxRules is the maximum number of rules in a set.
	MaxRules = 200

	maxName      = 100 // characters
	maxText      = 1000
	maxURL       = 2000
	maxApprover  = 254
	maxApprovers = 50
	maxProblems  = 50
	maxDetail    = 300
	maxCondition = 4 << 10 // bytes
	maxNodes     = 1000    // of a condition, with macros expanded
	maxDepth     = 50      // nesting depth of a condition
	maxPattern   = 200     // instructions of a compiled regular expression
)

// Costs are in units of the CEL cost model, whose version is pinned: about one unit for reading a
// field or comparing two numbers, and a tenth of a unit for each character of a string that is
// searched.
const (
	costModel = 1
	// maxRuleCost bounds a rule twice: its estimate when the set is parsed, with the sizes below,
	// and its actual cost for an action.
	maxRuleCost = 100_000
	// maxSetCost bounds the sum of the estimates of all rules.
	maxSetCost = 1_000_000
	// stateShare is the factor by which these limits, and maxSteps, are lower for the parts of
	// conditions that read the chain or the organization. They are evaluated inside the
	// transaction, where all requests wait for them.
	stateShare = 100

	// maxLooked bounds the values of a payload that one operation reads. The cost model assumes
	// that values of unknown type are small.
	maxLooked = 10_000
	// maxMatched is the maximum length in bytes of a text that a regular expression is matched
	// against.
	maxMatched = 4 << 10
	// maxSteps bounds the regular expressions of a set. Matching one instruction against one
	// character is a step. The most expensive steps take 8 ns, and 25 ns on a busy machine, so a
	// write waits at most 50 ms for them, all rules together; longer for patterns in a loop over
	// more domains than usual. The cost model cannot bound this, because it knows the length of a
	// pattern but not what its repetitions expand to.
	maxSteps = 2_000_000

	// Sizes for estimates. They refuse nothing at run time: with a larger payload a rule only
	// spends more of its limit.
	usualList    = 100
	usualString  = 1000 // in payload and metadata, where clients cut strings to this length
	usualEntries = 1000 // of a list or an object in payload and metadata

	// The maximum sizes of an Input.
	maxLabel      = 256     // characters of a name, an environment, a category, a domain
	maxCategories = 1000    // and the service's own four, which make no difference
	maxDomains    = 800     // 100 that the service finds and 100 of the client, each with two names in two forms
	maxInput      = 1 << 20 // bytes of the request, and so of anything in it
)
