package verify

import (
	"context"
	"fmt"
	"slices"

	"countersign/internal/canon"
	"countersign/internal/evidence"
	"countersign/internal/ledger"
)

// importSaid is what the audit log says of an import of approvals.
type importSaid struct {
	approvals int64
	sum       string
}

func readImport(act *ledger.Act) (importSaid, error) {
	detail, err := canon.Parse(act.Detail)
	if err != nil {
		return importSaid{}, fmt.Errorf("act %d cannot be read", act.Sequence)
	}
	count, _ := detail.Get("approvals")
	sum, _ := detail.Get("sha256")
	n, ok := count.Int()
	if !ok || sum.Str() == "" {
		return importSaid{}, fmt.Errorf("act %d does not say what was imported", act.Sequence)
	}
	return importSaid{n, sum.Str()}, nil
}

// inspectImports wants all approvals of each import that the audit log tells of. That no
// other is there is for the rows that fail to show.
func (a *audit) inspectImports(ctx context.Context) (*ledger.Break, error) {
	if len(a.imports) == 0 {
		return nil, nil // there are none, or the log was not walked
	}
	found := make(map[string]*evidence.ImportDigest, len(a.imports))
	for name := range a.imports {
		found[name] = evidence.NewImportDigest()
	}
	var after ledger.ApprovalID
	for {
		rows, err := a.judge.store.ImportedApprovals(ctx, a.org.ID, after, recordPage)
		if err != nil {
			return nil, err
		}
		for _, row := range rows {
			after = row.ID
			if d := found[row.Import.String()]; d != nil && !row.Tampered { // one that came since is not in the log that was walked
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
	return &ledger.Break{
		Check:  ledger.CheckRegistry,
		Detail: fmt.Sprintf("%d imports of approvals are not complete, or not as the audit log says; the first is %s", len(short), short[0]),
	}, nil
}
