package policy

// The bounds of a document. A set is evaluated on every action, and what reads the
// chain is evaluated on the one path that all writes go through, so each of them is a
// bound on other people's waiting time too.
const (
	// MaxDocument is the largest document in bytes.
	MaxDocument = 256 << 10
	// MaxRules is the most rules in a set.
	MaxRules = 200

	maxName      = 100 // characters
	maxText      = 1000
	maxURL       = 2000
	maxApprover  = 254
	maxApprovers = 50
	maxProblems  = 50
	maxDetail    = 300
	maxCondition = 4 << 10 // bytes
	maxNodes     = 1000    // of a condition, macros expanded
	maxDepth     = 50      // of a condition's nesting
	maxPattern   = 200     // instructions of a compiled regular expression
)

// The costs are in units of the expression language's cost model, whose version
// is pinned: about one unit for reading a field or comparing two numbers, a
// tenth of one for each character of a string that is looked through.
const (
	costModel = 1
	// maxRuleCost bounds a rule twice: its estimate when the set is read, with
	// the sizes below, and what it really spends on an action.
	maxRuleCost = 100_000
	// maxSetCost bounds the sum of the estimates of all rules.
	maxSetCost = 1_000_000
	// stateShare is how many times lower these bounds, and maxSteps, are for the parts
	// of conditions that read the chain or the organization: they are evaluated inside
	// the transaction, where everyone waits for them.
	stateShare = 100

	// maxLooked is the most values of a payload that one operation looks at. The
	// cost model takes values of unknown type for small ones.
	maxLooked = 10_000
	// maxMatched is the longest text in bytes that a regular expression is held
	// against.
	maxMatched = 4 << 10
	// maxSteps bounds the regular expressions of a set. Holding one instruction
	// against one character is a step. The dearest take 8 ns, and 25 ns on a busy
	// machine: a write waits 50 ms for them at the most, all rules together. The
	// cost model cannot bound this, as it knows the length of a pattern and not
	// what its repetitions expand to.
	maxSteps = 2_000_000

	// Sizes that estimates reckon with. They refuse nothing at run time: a larger
	// payload only makes a rule spend more of its bound.
	usualList    = 100
	usualString  = 1000 // in payload and metadata, where clients cut strings to this length
	usualEntries = 1000 // of a list or an object in payload and metadata

	// What an Input holds at the most.
	maxLabel      = 256 // characters of a name, an environment, a category, a domain
	maxCategories = 1000
	maxDomains    = 100     // classification cuts the list
	maxInput      = 1 << 20 // bytes of the request, and so of anything in it
)
