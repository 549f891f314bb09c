package evidence

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"reflect"
	"testing"

	"countersign/internal/store"
)

// passed maps each method of the port that Store does not override to the reason why forging its
// rows gains an attacker nothing. A new method of the port is overridden or listed here.
var passed = map[string]string{}

func pass(reason string, methods ...string) {
	for _, method := range methods {
		passed[method] = reason
	}
}

func init() {
	pass("it carries no rows", "Ping", "Probe", "Backup", "Close", "Watch")
	pass("what it writes is judged when it is read", "CloseSession")
	pass("nothing is decided by which organizations have used approvals", "OrganizationsWithApprovals")
	pass("nothing is decided by when something was last used or polled", "TouchKeys", "TouchTokens", "TouchChains", "PutPolls", "Polls", "Polled")
	pass("nothing is decided by how often a legacy route was used", "AddLegacyUses", "LegacyUses")
	pass("the search index proposes records, which are authenticated and matched against the search before they are shown", "Postings", "AddPostings",
		"ReceiptPostings", "AddReceiptPostings")
	pass("chains, states, events, approvals, receipts and heads carry authenticators that are checked where they are decoded",
		"Chain", "Chains", "ChainRows", "Events", "Event", "Addenda", "Approval", "Approvals", "Receipt", "NamedReceipt", "PlacedReceipt", "ReceiptOfChain", "Receipts",
		"ScanReceipts", "ScanBodies", "ScanChains", "ScanEvents", "Head")
	pass("counters of budgets carry authenticators that ReadCounter checks", "BudgetCounters", "CountersOf", "AllCounters")
	pass("checkpoints are signed, and tiles lead to the root that a checkpoint signs: both are verified where they are used",
		"LogCheckpoint", "PublishLogs", "PutWitnessed", "LogTiles", "LogTilesFrom")
	pass("the list of logs to sign and the signer's identity are hints: what is signed comes from authenticated receipts", "UnsignedLogs", "LeaseSigner")
	pass("an organization is authenticated over all its columns where it is used: the audit and the notices of tampering need one that fails", "Organization", "OrganizationBySlug", "Organizations")
	pass("the audit log is a hash chain with an authenticated end", "ActLog", "ActLogs", "Acts", "ScanActs")
	pass("a changed fingerprint only keeps the server from starting", "KeyChecks", "AddKeyCheck")
	pass("only an operator's command finds and seals rows without an authenticator", "UnsealedRows", "SealRows")
	pass("the lease and the retry time belong to the store: an attacker can only delay a job or have it given up",
		"RetryJob", "BuryJob", "BuryJobs", "CountJobs")
}

// Every method of the storage port is overridden in this package or listed above with a reason.
func TestEveryMethodOfThePortIsAccountedFor(t *testing.T) {
	t.Parallel()
	own := methodsOfStore(t)
	port := reflect.TypeFor[store.Store]()
	for i := range port.NumMethod() {
		name := port.Method(i).Name
		if _, listed := passed[name]; own[name] == listed {
			t.Errorf("%s: overridden %t, listed %t; want exactly one", name, own[name], listed)
		}
	}
	for name := range passed {
		if _, ok := port.MethodByName(name); !ok {
			t.Errorf("%s is listed but is not a method of the port", name)
		}
	}
}

// methodsOfStore returns the methods of Store that this package's source declares.
func methodsOfStore(t *testing.T) map[string]bool {
	t.Helper()
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	methods := make(map[string]bool)
	for _, name := range files {
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, declaration := range file.Decls {
			method, ok := declaration.(*ast.FuncDecl)
			if !ok || method.Recv == nil {
				continue
			}
			if pointer, ok := method.Recv.List[0].Type.(*ast.StarExpr); ok && fmt.Sprint(pointer.X) == "Store" {
				methods[method.Name.Name] = true
			}
		}
	}
	return methods
}
