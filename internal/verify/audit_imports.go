package verify

import (
	"context"
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"

	"countersign/internal/canon"
	"countersign/internal/evidence"
	"countersign/internal/ledger"
)

// loggedImport is what the audit log says about an import of approvals.
type loggedImport struct {
	approvals int64
	sum       string
}

func readImport(act *ledger.Act) (loggedImport, error) {
	detail, err := canon.Parse(act.Detail)
	if err != nil {
		return loggedImport{}, fmt.Errorf("act %d cannot be read", act.Sequence)
	}
	count, _ := detail.Get("approvals")
	sum, _ := detail.Get("sha256")
	n, ok := count.Int()
	if !ok || sum.Str() == "" {
		return loggedImport{}, fmt.Errorf("act %d does not say what was imported", act.Sequence)
	}
	return loggedImport{n, sum.Str()}, nil
}

// inspectImports requires all approvals of each import in the audit log. Forged additional
// approvals are among the failing rows.
func (a *audit) inspectImports(ctx context.Context) (*ledger.Break, error) {
	if len(a.imports) == 0 {
		return nil, nil // no imports, or the log was not walked
	}
	found := make(map[string]*evidence.ImportDigest, len(a.imports))
	for name := range a.imports {
		found[name] = evidence.NewImportDigest()
	}
	var after ledger.ApprovalID
	for {
		rows, err := a.store.ImportedApprovals(ctx, a.org.ID, after, recordPage)
		if err != nil {
			return nil, err
		}
		for _, row := range rows {
			after = row.ID
			if d := found[row.Import.String()]; d != nil && !row.Tampered { // d is nil for imports after the walk
				d.Add(row)
			}
		}
		if len(rows) < recordPage {
			break
		}
	}
	var short []string
	for name, said := range a.imports {
		if d := found[name]; d.Count != said.approvals || d.Sum() != said.sum {
			short = append(short, fmt.Sprintf("%s (%d of %d)", name, d.Count, said.approvals))
		}
	}
	if len(short) == 0 {
		return nil, nil
	}
	slices.Sort(short)
	all := sha256.Sum256([]byte(strings.Join(short, "\n")))
	return &ledger.Break{
		Check:    ledger.CheckRegistry,
		Detail:   fmt.Sprintf("%d imports of approvals are not complete, or not as the audit log says; the first is %s", len(short), short[0]),
		Evidence: all[:], // as for other records
	}, nil
}
