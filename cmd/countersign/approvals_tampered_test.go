package main

import (
	"path/filepath"
	"strings"
	"testing"

	"countersign/internal/cli"
)

// One approval whose chain was changed or deleted outside the service is marked in lists, and hides none of
// the others. It cannot be decided. This holds also if the server does not remember the chain.
//
//countersign:race
func TestApprovalsOfATamperedChain(t *testing.T) {
	t.Parallel()
	s := migratedSQLite(t)
	server := start(t, s.flags...)
	admin := server.admin(t)
	person := newReviewer(t, s, server, "member")
	changed, gone, decided, sound := admin.pay(t, `{"amount_usd":9000}`), admin.pay(t, `{"amount_usd":8000}`), admin.pay(t, `{"amount_usd":7500}`), admin.pay(t, `{"amount_usd":7000}`)
	succeed(t, person.args("approve", decided, "--yes")...)
	s.exec(t, `UPDATE chain_states SET status = 'timed_out' WHERE chain_no = 1`)
	s.exec(t, `DELETE FROM chain_states WHERE chain_no IN (2, 3)`)
	server.stop(t)
	remove(t, filepath.Join(s.folder, "heads.chains"))
	person.url = start(t, s.flags...).address
	list := succeed(t, person.args("list")...)
	for id, marked := range map[string]bool{changed: true, gone: true, sound: false} {
		line := lineWith(list, id[:8])
		if line == "" || strings.Contains(line, "CHANGED OUTSIDE THE SERVICE") != marked || strings.Contains(line, "payments (production)") == marked {
			t.Errorf("the line of an approval that is marked %t is %q", marked, line)
		}
	}
	for _, id := range []string{changed, gone} {
		refuse(t, cli.ExitFailed, "changed outside the service", person.args("deny", id[:8], "--yes")...)
	}
	if list := succeed(t, person.args("list", "--status", "approved")...); !strings.Contains(lineWith(list, decided[:8]), "changed outside the service") {
		t.Errorf("the approval of a chain that is gone is not marked:\n%s", list)
	}
}

func lineWith(text, word string) string {
	for line := range strings.Lines(text) {
		if strings.Contains(line, word) {
			return line
		}
	}
	return ""
}
