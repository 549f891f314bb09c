package architecture

import "slices"

const modulePath = "countersign/"

// A rule says which packages of this module a package may import, and why not
// the others.
type rule struct {
	may    []string
	except []string // packages that even may = everything leaves out
	reason string
}

func (r rule) mayImport(target string) bool {
	if slices.ContainsFunc(r.except, func(root string) bool { return within(target, root) }) {
		return false
	}
	return slices.Contains(r.may, target) || slices.Contains(r.may, everything)
}

const everything = "*"

// Packages are named by their path without "internal/".
var packages = map[string]rule{
	"api": {
		reason: "it only carries the API document",
	},
	"docs": {
		reason: "it only carries the guides",
	},
	"fault": {
		reason: "everyone may report an error to a caller, so it depends on no one",
	},
	"canon": {
		may:    []string{"fault"},
		reason: "canonical JSON is the bottom of the module, below everything that is read or written",
	},
	"cache": {
		reason: "it keeps what it is given and knows nothing of it",
	},
	"classify": {
		may:    []string{"canon"},
		reason: "what is in an action is read from the action alone",
	},
	"pricing": {
		may:    []string{"canon"},
		reason: "what a model costs is read from a table alone",
	},
	"ledger": {
		may:    []string{"canon", "classify", "fault"},
		reason: "the core decides, seals and verifies with what it is given",
	},
	"policy": {
		may:    []string{"canon"},
		reason: "policies are evaluated on what they are given",
	},
	"tlog": {
		reason: "a tree is a function of its leaves, and a checkpoint one of its tree",
	},
	"bundle": {
		may:    []string{"canon"},
		reason: "a verifier of evidence shares no code with what made it",
	},
	"keyring": {
		may:    []string{"ledger"},
		reason: "keys serve the core and know no store and no use case",
	},
	"observe": {
		reason: "everyone reports to it, so it can depend on almost no one",
	},
	"anchor": {
		may:    []string{"ledger"},
		reason: "an anchor timestamps bytes and knows no store and no use case",
	},
	"anchor/anchortest": {
		reason: "a timestamp authority for tests shares no code with what it tests",
	},
	"notify": {
		may:    []string{"canon", "ledger"},
		reason: "a notification is sent with what it is given",
	},
	"notify/slacktest": {
		reason: "a Slack for tests shares no code with what it tests",
	},
	"sso": {
		may:    []string{"ledger"},
		reason: "single sign-on proves who somebody is, and knows neither keys nor a store",
	},
	"witness": {
		reason: "a witness judges the logs of others, and shares no code with the one that it may watch",
	},
	"store": {
		may:    []string{"ledger"},
		reason: "the storage port speaks the core's language and no other",
	},
	"store/sqlite": {
		may:    []string{"cache", "ledger", "store"},
		reason: "a store implements the port and knows neither its users nor the other store",
	},
	"store/postgres": {
		may:    []string{"cache", "ledger", "store"},
		reason: "a store implements the port and knows neither its users nor the other store",
	},
	"store/storetest": {
		may:    []string{"fault", "ledger", "store"},
		reason: "the conformance suite tests the port's promise, not one store",
	},
	"evidence": {
		may:    []string{"cache", "canon", "fault", "ledger", "policy", "store"},
		reason: "rows are authenticated with what they hold, and by no use case",
	},
	"verify": {
		may:    []string{"cache", "canon", "evidence", "fault", "keyring", "ledger", "store", "tlog"},
		reason: "judging reads authenticated rows, writes nothing and knows no use case",
	},
	"logsign": {
		may:    []string{"cache", "evidence", "keyring", "ledger", "store", "tlog", "verify"},
		reason: "the signer adds verified receipts to logs, and knows no use case",
	},
	"service": {
		may:    []string{"bundle", "cache", "canon", "evidence", "fault", "keyring", "ledger", "logsign", "notify", "policy", "pricing", "store", "tlog", "verify"},
		reason: "use cases see the storage port and no front end; only cmd names a store",
	},
	"problem": {
		may:    []string{"fault"},
		reason: "the front ends' table of errors is about the core's codes and nothing else",
	},
	"httpapi": {
		may:    []string{"api", "canon", "docs", "fault", "ledger", "problem", "service", "verify"},
		reason: "a front end goes through service and verify, and front ends do not know each other",
	},
	"console": {
		may:    []string{"canon", "fault", "ledger", "problem", "service", "sso"},
		reason: "a front end goes through service and verify, and front ends do not know each other",
	},
	"worker": {
		may:    []string{"anchor", "canon", "fault", "ledger", "notify", "service", "witness"},
		reason: "a front end goes through service and verify, and front ends do not know each other",
	},
	"servicetest": {
		may:    []string{"keyring", "ledger", "notify", "service", "store", "verify"},
		reason: "tests of the service and of its front ends start from it, so it knows no front end",
	},
	"browsertest": {
		may:    []string{"nightly"},
		reason: "it opens a browser and knows nothing of the pages",
	},
	"nightly": {
		reason: "it counts and knows nothing of what",
	},
	"testdb": {
		may:    []string{"store", "store/postgres", "store/sqlite"},
		reason: "it makes databases for tests and knows nothing of what they hold",
	},
	"bench": {
		may:    []string{everything},
		except: []string{"cmd"},
		reason: "commands are wired in cmd alone",
	},
	"cli": {
		may:    []string{"fault", "keyring", "ledger", "notify", "observe", "service", "sso", "store", "verify"},
		reason: "what commands share knows no command, and gets its databases from cmd",
	},
	"cli/operate": {
		may:    []string{"anchor", "bundle", "canon", "cli", "evidence", "fault", "keyring", "ledger", "service", "store", "verify"},
		reason: "commands on a store go through service and verify, and do not know the commands over the API",
	},
	"cli/review": {
		may:    []string{"bundle", "canon", "classify", "cli", "fault", "ledger"},
		reason: "commands over the API know the server by its API alone",
	},
	"cli/policy": {
		may:    []string{"canon", "cli", "fault", "ledger", "policy", "pricing", "service"},
		reason: "policy sets are checked as the service compiles them, without a store",
	},
	"cli/doctor": {
		may:    []string{"cli", "keyring", "ledger", "service", "sso"},
		reason: "an examination reads an installation through service, and changes nothing",
	},
	"cli/gateway": {
		may:    []string{"canon", "cli", "fault"},
		reason: "the gateway runs beside an agent and knows the server by its API alone",
	},
	"cli/witness": {
		may:    []string{"cli", "observe", "witness"},
		reason: "a witness watches the logs of others and opens no store",
	},
	"cli/demo": {
		may:    []string{"cli", "cli/operate", "cli/review", "ledger", "service"},
		reason: "the demo uses the commands that it shows, and gets its server from cmd",
	},
	"cmd/countersign": {
		may: []string{everything},
	},
}

// What lies below these is a pure function of its arguments.
var purePackages = []string{"bundle", "canon", "classify", "fault", "ledger", "policy", "pricing", "tlog"}

// Import paths, each with all below it, that a pure package leaves alone.
var impureImports = map[string]string{
	"context":      "what needs no waiting needs no cancelling",
	"database/sql": "storing is the caller's business",
	"net":          "it reaches no network",
	"os":           "it sees no files and no environment",
	"syscall":      "it asks nothing of the system",
	"crypto/rand":  "randomness arrives as an argument, or a result could not be repeated",
	"math/rand":    "randomness arrives as an argument, or a result could not be repeated",
}

// Exceptions to the above: these only parse.
var harmless = []string{"net/url", "net/netip", "net/mail"}

// Functions, by import path, that a pure package does not use.
var impureFunctions = map[string][]string{
	"time":                   {"Now", "Since", "Until", "Sleep", "After", "AfterFunc", "Tick", "NewTicker", "NewTimer"},
	"github.com/google/uuid": {"New", "NewString", "NewRandom", "NewUUID", "NewV6", "NewV7"},
}

// A home lists the only packages that may import something.
type home struct {
	packages []string
	reason   string
}

var confinedImports = map[string]home{
	"database/sql": {
		packages: []string{"store/sqlite", "store/postgres", "testdb", "bench", "cmd/countersign"},
		reason:   "SQL lives in the two stores",
	},
	"modernc.org/sqlite": {
		packages: []string{"store/sqlite", "bench", "cmd/countersign"},
		reason:   "SQLite's driver is known to its store alone",
	},
	"github.com/jackc/pgx/v5": {
		packages: []string{"store/postgres", "testdb", "bench", "cmd/countersign"},
		reason:   "PostgreSQL's driver is known to its store alone",
	},
	"github.com/coreos/go-oidc/v3": {
		packages: []string{"sso"},
		reason:   "single sign-on alone speaks OpenID Connect",
	},
	"golang.org/x/oauth2": {
		packages: []string{"sso"},
		reason:   "single sign-on alone speaks OpenID Connect",
	},
	"github.com/pressly/goose/v3": {
		packages: []string{"store/sqlite", "store/postgres"},
		reason:   "each store migrates itself",
	},
}
