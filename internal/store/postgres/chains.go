package postgres

import (
	"context"
	"fmt"
	"strings"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

const selectChains = `select ` + chainColumns + ` from chains c join chain_states s on s.chain_id = c.id `

// Chain implements store.Reader.
func (s *Store) Chain(ctx context.Context, id ledger.ChainID) (*store.ChainRecord, error) {
	return one(ctx, s, "chain", selectChains+`where c.id = $1 and s.org_id = c.org_id`, []any{bytesOf(id.UUID)}, readChain)
}

// Chains implements store.Reader.
func (s *Store) Chains(ctx context.Context, query store.ChainQuery) ([]*store.ChainRecord, error) {
	sql, args := chainsStatement(query)
	return list(ctx, s, "chains", sql, args, readChain)
}

// chainsStatement names only the filters that are set, so that each combination
// gets a plan of its own with the index that fits it. The organization is named
// once, on the table whose index leads to the chains; the other is then joined
// by id and in no other way.
func chainsStatement(query store.ChainQuery) (string, []any) {
	var sql strings.Builder
	sql.WriteString(selectChains)
	if query.Status == "" {
		sql.WriteString("where c.org_id = $1")
	} else {
		sql.WriteString("where s.org_id = $1")
	}
	args := []any{bytesOf(query.Org.UUID)}
	filter := func(condition string, value any) {
		args = append(args, value)
		fmt.Fprintf(&sql, " and %s $%d", condition, len(args))
	}
	if query.OpenedBy != nil {
		filter("c.opened_by =", bytesOf(query.OpenedBy.UUID))
	}
	if query.Status != "" {
		filter("s.status =", string(query.Status))
	}
	if query.Environment != "" {
		filter("c.environment =", query.Environment)
	}
	if query.ExternalID != "" {
		sql.WriteString(" and c.external_id <> ''") // the index holds no others
		filter("c.external_id =", query.ExternalID)
	}
	if query.Before != nil {
		filter("c.id <", bytesOf(query.Before.UUID))
	}
	args = append(args, query.Limit)
	fmt.Fprintf(&sql, " order by c.id desc limit $%d", len(args))
	return sql.String(), args
}

// scanPage bounds what one statement of a scan returns: a scan may take longer
// than any statement should.
const scanPage = 500

// An audit must see what is left of a record: a chain without its state, and a
// state whose chain is another organization's.
const (
	auditChains = `select ` + chainColumns + ` from chains c left join chain_states s on s.chain_id = c.id and s.org_id = c.org_id
		where c.org_id = $1 and c.id > $2 order by c.id limit $3`
	auditStates = `select s.org_id, s.status, s.state, s.mac
		from chain_states s left join chains c on c.id = s.chain_id and c.org_id = s.org_id where s.org_id = $1 and c.id is null`
)

// ScanChains implements store.Reader.
func (s *Store) ScanChains(ctx context.Context, org ledger.OrgID, visit func(*store.ChainRecord) error) error {
	err := s.query(ctx, "scan states", auditStates, []any{bytesOf(org.UUID)}, func(r *row) error {
		left := &store.ChainRecord{Org: ledger.OrgID{UUID: r.id()}, Status: ledger.ChainStatus(r.text()), State: r.bytes(), MAC: r.bytes()}
		return show(r, left, visit)
	})
	if err != nil {
		return err
	}
	var last ledger.ChainID
	return scanPages(scanPage, func() (int, error) {
		count := 0
		err := s.query(ctx, "scan chains", auditChains, []any{bytesOf(org.UUID), bytesOf(last.UUID), scanPage}, func(r *row) error {
			chain := readChain(r)
			last, count = chain.ID, count+1
			return show(r, chain, visit)
		})
		return count, err
	})
}

// show visits a record that was read whole.
func show[T any](r *row, record T, visit func(T) error) error {
	if err := r.end(); err != nil {
		return err
	}
	return visit(record)
}

// scanPages reads pages until one is not full.
func scanPages(size int, page func() (int, error)) error {
	for {
		count, err := page()
		if err != nil || count < size {
			return err
		}
	}
}
