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

// passed are the methods of the port that this package does not replace, with the
// reason why nobody gains anything by the rows that they carry. A new method of the
// port is replaced here, or listed.
var passed = map[string]string{}

func pass(reason string, methods ...string) {
	for _, method := range methods {
		passed[method] = reason
	}
}

func init() {
	pass("it carries no rows", "Ping", "Probe", "Backup", "Close", "Watch")
	pass("what it writes is judged when it is read", "CloseSession")
	pass("nothing is decided by when something was last used or polled", "TouchKeys", "TouchTokens", "TouchChains", "PutPolls", "Polls", "Polled")
	pass("nothing is decided by how often a legacy route was used", "AddLegacyUses", "LegacyUses")
	pass("the search index proposes records, which are authenticated and held against the search before they are shown", "Postings", "AddPostings")
	pass("chains, states, events, approvals, receipts and heads carry authenticators that are checked where they are decoded",
		"Chain", "Chains", "Events", "Event", "Addenda", "Approval", "Approvals", "Receipt", "NamedReceipt", "PlacedReceipt", "ReceiptOfChain", "Receipts",
		"ScanReceipts", "ScanBodies", "ScanChains", "ScanEvents", "Head")
	pass("counters of budgets carry authenticators that ReadCounter checks", "BudgetCounters", "CountersOf", "AllCounters")
	pass("checkpoints are signed, and tiles lead to the root that a checkpoint signs: both are held against it where they are used",
		"LogCheckpoint", "PublishLogs", "PutWitnessed", "LogTiles", "LogTilesFrom")
	pass("which logs may have to be signed, and who signs, is a hint: what is signed comes from authenticated receipts", "UnsignedLogs", "LeaseSigner")
	pass("an organization is authenticated over all its columns where it is used: the audit and the notices of tampering need one that fails", "Organization", "OrganizationBySlug", "Organizations")
	pass("the audit log is a hash chain with an authenticated end", "ActLog", "ActLogs", "Acts", "ScanActs")
	pass("a fingerprint that was changed keeps the server from starting", "KeyChecks", "AddKeyCheck")
	pass("rows without an authenticator are found and sealed for the operator alone", "UnsealedRows", "SealRows")
	pass("who has leased a job, and when it is tried again, is the store's own: it can be delayed and given up, and no more",
		"RetryJob", "BuryJob", "BuryJobs", "CountJobs")
}

// Every method of the storage port is replaced here, or stands above with a reason.
func TestEveryMethodOfThePortIsAccountedFor(t *testing.T) {
	t.Parallel()
	own := methodsOfStore(t)
	port := reflect.TypeFor[store.Store]()
	for i := range port.NumMethod() {
		name := port.Method(i).Name
		if _, listed := passed[name]; own[name] == listed {
			t.Errorf("%s: replaced %t, listed %t; want one of the two", name, own[name], listed)
		}
	}
	for name := range passed {
		if _, ok := port.MethodByName(name); !ok {
			t.Errorf("%s is listed and is no method of the port", name)
		}
	}
}

// methodsOfStore are those that this package's source declares.
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
