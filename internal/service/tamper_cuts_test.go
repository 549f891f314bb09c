package service_test

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"countersign/internal/fault"
	"countersign/internal/ledger"
	"countersign/internal/verify"
)

var headChecks = []ledger.Check{ledger.CheckHead}

// expect tries one crime that may touch any table.
func (s *scene) expect(name, org string, sequence int64, checks []ledger.Check, commit func() error) {
	s.t.Helper()
	s.try(crime{name: name, org: org, sequence: sequence, checks: checks, commit: func(*scene) error { return commit() }})
}

// ofOrg returns an organization's rows of a table.
func (s *scene) ofOrg(table, slug string) []row {
	s.t.Helper()
	var own []row
	for _, r := range s.rowsOf(table) {
		if r.org == slug {
			own = append(own, r)
		}
	}
	slices.SortStableFunc(own, func(a, b row) int { return cmp.Compare(a.sequence, b.sequence) })
	return own
}

func (s *scene) removeAll(rows []row) error {
	for i := range rows {
		if err := s.remove(&rows[i]); err != nil {
			return err
		}
	}
	return nil
}

func (s *scene) replace(old, with row) error {
	if err := s.remove(&old); err != nil {
		return err
	}
	return s.insert(&with)
}

// update runs an UPDATE with its parameters written as ?.
func (s *scene) update(query string, args ...any) error {
	for n := 1; strings.Contains(query, "?"); n++ {
		query = strings.Replace(query, "?", s.dialect.mark(n)+" ", 1)
		if s.dialect.mark(n) == "?" {
			break
		}
	}
	return s.exec("UPDATE "+query, args...)
}

// cutTheEnd deletes the last receipts, one to all of them, and covers it up with the head:
// unchanged, edited by hand, and restored to the authentic one of that time.
func (s *scene) cutTheEnd(every int) {
	s.t.Helper()
	for _, slug := range tamperedOrgs {
		receipts, head := s.ofOrg("receipts", slug), s.ofOrg("heads", slug)[0]
		if len(s.past.heads[slug]) != sealedChains+1 || len(receipts) != sealedChains {
			s.t.Fatalf("%d heads and %d receipts are known of %s", len(s.past.heads[slug]), len(receipts), slug)
		}
		for left := 0; left < sealedChains; left += every {
			cut, older, first := after(receipts, int64(left)), s.past.heads[slug][left], int64(left)+1
			name := fmt.Sprintf("all but %d of %s cut", left, slug)
			s.expect(name, slug, first, headChecks, func() error { return s.removeAll(cut) })
			s.expect(name+", head counted down", slug, first, headChecks, func() error {
				forged := head.with(map[string]any{"count": older.value("count"), "last_hash": older.value("last_hash")})
				return firstError(s.removeAll(cut), s.replace(head, forged))
			})
			s.expect(name+", rolled back to an older head", slug, first, chainChecks, func() error {
				return firstError(s.removeAll(cut), s.replace(head, older))
			})
			s.expect(fmt.Sprintf("rolled back to head %d of %s", left, slug), slug, nextReceipt, headChecks, func() error {
				return s.replace(head, older)
			})
		}
	}
}

// editBodies changes each receipt's signed bytes, for an audit of nothing else.
func (s *scene) editBodies() {
	s.t.Helper()
	for i, r := range s.rowsOf("receipts") {
		bodies := mutations(r.value("body"), nil)
		for turn, name := range slices.Sorted(maps.Keys(bodies)) {
			if (turn+i)%turns != 0 {
				continue
			}
			s.try(crime{
				name: fmt.Sprintf("body %d of %s %s", i, r.org, name), commit: func(s *scene) error { return s.set(&r, "body", bodies[name]) },
				org: r.org, sequence: r.sequence, checks: []ledger.Check{ledger.CheckSignature}, tables: []string{"receipts"},
			})
		}
	}
}

// cutReceipts deletes each receipt, swaps it with the next, and deletes all that follow it.
func (s *scene) cutReceipts() {
	s.t.Helper()
	for _, slug := range tamperedOrgs {
		receipts := s.ofOrg("receipts", slug)
		for i, r := range receipts {
			name := fmt.Sprintf("receipt %d of %s ", r.sequence, slug)
			s.expect(name+"deleted", slug, r.sequence, []ledger.Check{ledger.CheckSequence, ledger.CheckHead}, func() error { return s.remove(&r) })
			s.expect(name+"and all after it cut", slug, r.sequence, headChecks, func() error { return s.removeAll(receipts[i:]) })
			if i > 0 {
				s.expect(name+"exchanged", slug, r.sequence-1, nil, func() error { return s.exchange(&r, &receipts[i-1]) })
			}
		}
	}
}

// reopenChains restores sealed chains to their last state before sealing, which was authentic
// then.
func (s *scene) reopenChains(every int) {
	s.t.Helper()
	for _, slug := range tamperedOrgs {
		states := s.ofOrg("chain_states", slug)
		for i := 0; i < sealedChains; i += every {
			s.expect(fmt.Sprintf("chain %d of %s opened again", i+1, slug), slug, int64(i)+1, chainChecks, func() error {
				return s.replace(states[i], s.past.states[slug][i])
			})
		}
	}
}

func after(receipts []row, sequence int64) []row {
	var later []row
	for _, r := range receipts {
		if r.sequence > sequence {
			later = append(later, r)
		}
	}
	return later
}

func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// eraseOrganizations deletes everything of an organization, renames it, and gives it another's
// name.
func (s *scene) eraseOrganizations() {
	s.t.Helper()
	for _, slug := range tamperedOrgs {
		var rows []row
		for _, table := range strings.Fields(evidence) {
			rows = append(rows, s.ofOrg(table, slug)...)
		}
		s.expect("all rows of "+slug+" deleted", slug, 1, headChecks, func() error { return s.removeAll(rows) })
		s.expect(slug+" renamed", "renamed", 1, []ledger.Check{ledger.CheckColumns}, func() error {
			return s.update("organizations SET slug = 'renamed' WHERE slug = ?", slug)
		})
	}
	s.expect("two names exchanged", "acme", 1, []ledger.Check{ledger.CheckColumns}, func() error {
		return firstError(s.update("organizations SET slug = 'x' WHERE slug = 'acme'"),
			s.update("organizations SET slug = 'acme' WHERE slug = 'other'"),
			s.update("organizations SET slug = 'other' WHERE slug = 'x'"))
	})
	// An organization whose own row is gone cannot be audited, and the audit says
	// so instead of calling it intact.
	if err := s.exec("DELETE FROM organizations WHERE slug = 'acme'"); err != nil {
		s.t.Fatal(err)
	}
	_, err := s.service.Operator().Audit(s.t.Context(), "acme", verify.AuditOptions{})
	checkCode(s.t, "an audit of an organization without its row", err, fault.CodeNotFound)
	s.restore()
}

// renumber shifts and reverses the numbers of all receipts, and moves receipts and chains to the
// other organization.
func (s *scene) renumber() {
	s.t.Helper()
	acme, other := s.ofOrg("heads", "acme")[0].value("org_id"), s.ofOrg("heads", "other")[0].value("org_id")
	aside := func() error { return s.update("receipts SET sequence = 1000 + sequence WHERE org_id = ?", acme) }
	back := func(to string) error { return s.update("receipts SET sequence = "+to+" WHERE org_id = ?", acme) }
	anyOf := checksFor("receipts")
	s.expect("all numbers one higher", "acme", 1, anyOf, func() error {
		return firstError(aside(), back("sequence - 999"))
	})
	s.expect("the order turned round", "acme", 1, anyOf, func() error {
		return firstError(aside(), back(fmt.Sprintf("%d - sequence", 1000+nextReceipt)))
	})
	s.expect("the first cut and the rest moved down", "acme", 1, anyOf, func() error {
		first := s.ofOrg("receipts", "acme")[0]
		return firstError(s.remove(&first), aside(), back("sequence - 1001"))
	})
	s.expect("all receipts given to the other organization", "acme", 1, headChecks, func() error {
		return firstError(s.receiptsAway(acme, other, 1))
	})
	s.expect("receipts added to another's", "other", nextReceipt, anyOf, func() error {
		return firstError(s.receiptsAway(acme, other, 2))
	})
	sealed, open := "IN (SELECT chain_id FROM receipts)", "NOT IN (SELECT chain_id FROM receipts)"
	give := func(which string) error {
		return s.update("chains SET idempotency_key = NULL, org_id = ? WHERE org_id = ? AND id "+which, other, acme)
	}
	s.expect("sealed chains given to the other organization", "acme", 1, chainChecks, func() error { return give(sealed) })
	s.expect("open chains given to the other organization", "acme", nextReceipt, chainChecks, func() error { return give(open) })
	s.expect("open chains taken from the other organization", "other", nextReceipt, chainChecks, func() error { return give(open) })
	s.expect("open chains taken with their states", "other", nextReceipt, chainChecks, func() error {
		return firstError(give(open), s.update("chain_states SET org_id = ? WHERE org_id = ? AND status = 'active'", other, acme))
	})
}

// receiptsAway moves the receipts from one number on to another organization, after its own. The
// first has the empty link, of which each organization may have one.
func (s *scene) receiptsAway(from, to any, first int64) error {
	if first == 1 {
		return s.update("receipts SET org_id = ?, sequence = sequence + 12, previous_hash = ? WHERE org_id = ?", to, make([]byte, 32), from)
	}
	return s.update("receipts SET org_id = ?, sequence = sequence + 11 WHERE org_id = ? AND sequence > 1", to, from)
}
