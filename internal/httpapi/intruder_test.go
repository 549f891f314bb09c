package httpapi_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/uuid"
)

// exec changes rows behind the service's back, and something must have changed.
// Ids among the arguments are written as a column holds them.
func (d *database) exec(t *testing.T, query string, args ...any) {
	t.Helper()
	for i, arg := range args {
		if id, ok := arg.(uuid.UUID); ok {
			args[i] = d.id(id)
		}
	}
	result, err := d.direct.ExecContext(t.Context(), d.marked(query), args...)
	if err != nil {
		t.Fatal(err)
	}
	if n, err := result.RowsAffected(); err != nil || n == 0 {
		t.Fatalf("%s changed %d rows: %v", query, n, err)
	}
}

// replace exchanges a text in one column of one row.
func (d *database) replace(t *testing.T, table, column, where, old, changed string, args ...any) {
	t.Helper()
	for i, arg := range args {
		if id, ok := arg.(uuid.UUID); ok {
			args[i] = d.id(id)
		}
	}
	var stored []byte
	if err := d.direct.QueryRowContext(t.Context(), d.marked("SELECT "+column+" FROM "+table+" WHERE "+where), args...).Scan(&stored); err != nil {
		t.Fatal(err)
	}
	edited := strings.Replace(string(stored), old, changed, 1)
	if edited == string(stored) {
		t.Fatalf("there is no %s in %s", old, stored)
	}
	d.exec(t, "UPDATE "+table+" SET "+column+" = ? WHERE "+where, append([]any{[]byte(edited)}, args...)...)
}

// marked numbers a query's parameters where the database wants that.
func (d *database) marked(query string) string {
	for n := 1; d.numbered && strings.Contains(query, "?"); n++ {
		query = strings.Replace(query, "?", fmt.Sprintf("$%d", n), 1)
	}
	return query
}

// privateKeys are an organization's, as they are stored.
func (d *database) privateKeys(t *testing.T, org uuid.UUID) (sealed [][]byte) {
	t.Helper()
	rows, err := d.direct.QueryContext(t.Context(), d.marked("SELECT private FROM signing_keys WHERE org_id = ? AND private IS NOT NULL"), d.id(org))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		var one []byte
		if err := rows.Scan(&one); err != nil {
			t.Fatal(err)
		}
		sealed = append(sealed, one)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return sealed
}
