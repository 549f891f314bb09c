package service_test

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strings"

	"countersign/internal/ledger"
)

// meaningless lists columns that nothing reads: the numbers by which SQLite identifies rows. Every
// other column of a table is evidence until it is listed here.
var meaningless = map[string]bool{"receipts.no": true, "events.no": true}

// placing lists columns that assign a row to another receipt, or give a receipt another number:
// then the other receipt may break first.
var placing = map[string]bool{
	"receipts.sequence": true, "events.chain_no": true, "events.chain_id": true, "addenda.chain_no": true, "addenda.chain_id": true,
	"approvals.chain_id": true,
}

var chainChecks = []ledger.Check{ledger.CheckChain}

// checksFor returns the checks that may find tampering with a table's row.
func checksFor(table string) []ledger.Check {
	switch table {
	case "receipts":
		return []ledger.Check{ledger.CheckSignature, ledger.CheckColumns, ledger.CheckSequence, ledger.CheckPreviousLink, ledger.CheckHead}
	case "heads":
		return []ledger.Check{ledger.CheckHead}
	case "chains", "chain_states":
		return chainChecks
	case "approvals":
		return []ledger.Check{ledger.CheckApprovals, ledger.CheckChain}
	case "act_logs": // where the end is missing, the log is shorter than was known
		return []ledger.Check{ledger.CheckAuditLog, ledger.CheckRollback}
	case "acts", "policies", "organizations":
		return []ledger.Check{ledger.CheckAuditLog}
	case "budget_counters":
		return []ledger.Check{ledger.CheckBudgets}
	case "imported_approvals":
		return []ledger.Check{ledger.CheckRegistry}
	case "findings":
		return []ledger.Check{ledger.CheckFindings}
	case "transparency_logs", "log_checkpoints", "log_tiles":
		return []ledger.Check{ledger.CheckTransparency}
	default:
		return []ledger.Check{ledger.CheckEventsDigest, ledger.CheckChain}
	}
}

// turns is the number of rows among which the wrong values are distributed. The race detector
// makes SQLite many times slower, and trying every value finds nothing more.
const turns = 2 + 6*racing

// editEverything changes every column of every row, or of each n-th. There are many wrong values
// for a column: the rows take turns in trying them.
func (s *scene) editEverything(table string, every int) {
	s.t.Helper()
	rows := s.rowsOf(table)
	found, refused := map[string]int{}, map[string]int{}
	for i, r := range rows {
		if i%every != 0 {
			continue
		}
		for j, column := range r.columns {
			if meaningless[table+"."+column] {
				continue
			}
			neighbour := rows[(i+1)%len(rows)].values[j]
			others := mutations(r.values[j], neighbour)
			for turn, name := range slices.Sorted(maps.Keys(others)) {
				if every == 1 && (turn+i)%min(turns, len(others)) != 0 {
					continue
				}
				edit := crime{
					name:   fmt.Sprintf("%s %d of %s: %s %s", table, i, r.org, column, name),
					commit: func(s *scene) error { return s.set(&r, column, others[name]) },
					org:    r.org, sequence: r.sequence, checks: checksFor(table),
					tables: []string{table}, earlier: placing[table+"."+column], single: true, unsaid: unsaid(&r, name),
				}
				if s.try(edit) {
					refused[column]++
				} else {
					found[column]++
				}
			}
		}
	}
	for _, column := range s.columnsOf(table) {
		if found[column]+refused[column] == 0 && !meaningless[table+"."+column] {
			s.t.Errorf("column %s.%s was never edited", table, column)
		}
	}
	s.t.Logf("%s: edits found %v, refused by constraints %v", table, found, refused)
}

// mutations returns other values for a column: near misses, extremes, nothing at all, another
// type, and the next row's value.
func mutations(value, neighbour any) map[string]any {
	others := map[string]any{"emptied": nil, "of another type": int64(7), "of another type still": "seven", "of the next row": neighbour}
	switch v := value.(type) {
	case nil:
		others["filled"], others["filled with nothing"], others["filled with bytes"] = "x", "", []byte("x")
	case int64:
		others["+1"], others["-1"], others["0"], others["negative"], others["huge"] = v+1, v-1, int64(0), -v, int64(1)<<60
	case string:
		if len(v) == 36 && strings.Count(v, "-") == 4 {
			others["another id"] = otherID(v)
		}
		others["longer"], others["nothing"], others["in capitals"] = v+"x", "", strings.ToUpper(v)
		if v != "" {
			others["shorter"] = v[:len(v)-1]
		}
	case []byte:
		others["longer"], others["nothing"] = append(bytes.Clone(v), 0), []byte{}
		others["as text"] = string(v)
		if len(v) > 0 {
			others["shorter"] = v[:len(v)-1]
			others["first bit"], others["middle bit"], others["last bit"] = flipped(v, 0), flipped(v, len(v)/2), flipped(v, len(v)-1)
		}
		if bytes.HasPrefix(v, []byte("{")) {
			others["with a space"] = append([]byte("{ "), v[1:]...)
			others["with a digit changed"] = bytes.Replace(v, []byte("0"), []byte("1"), 1)
			others["with a word changed"] = bytes.Replace(v, []byte("acme"), []byte("emca"), 1)
		}
	}
	for name, other := range others {
		if sameValue(other, value) || value == nil && other == "" || value == "" && other == nil {
			// No text and the empty text are one and the same to every reader.
			delete(others, name)
		}
	}
	return others
}

func flipped(v []byte, at int) []byte {
	changed := bytes.Clone(v)
	changed[at] ^= 1
	return changed
}

func sameValue(a, b any) bool {
	left, leftIsBytes := a.([]byte)
	right, rightIsBytes := b.([]byte)
	if leftIsBytes != rightIsBytes {
		return false
	}
	if leftIsBytes {
		return bytes.Equal(left, right)
	}
	return a == b
}

// places lists the columns that identify the position of a row. A swap exchanges the others.
var places = map[string][]string{
	"receipts": {"no", "org_id", "sequence"}, "events": {"no", "chain_no", "chain_id", "sequence"},
	"addenda": {"chain_no", "chain_id", "position"}, "heads": {"org_id"},
	"chains": {"no", "id"}, "chain_states": {"chain_no", "chain_id"},
	"approvals": {"org_id", "chain_id", "sequence"}, "acts": {"org_id", "sequence"}, "act_logs": {"org_id"}, "policies": {"org_id", "number"}, "findings": {"org_id", "name"},
	"budget_counters": {"id", "org_id"}, "imported_approvals": {"id", "org_id"},
	"transparency_logs": {"id", "org_id"}, "log_checkpoints": {"log_id", "kind"}, "log_tiles": {"log_id", "level", "number"},
}

// moveEverything deletes each row and swaps each with the next, within its organization and across
// organizations.
func (s *scene) moveEverything(table string, every int) {
	s.t.Helper()
	rows := s.rowsOf(table)
	for i, r := range rows {
		if i%every != 0 {
			continue
		}
		deletion := fmt.Sprintf("%s %d of %s deleted", table, i, r.org)
		s.try(crime{
			name: deletion, commit: func(s *scene) error { return s.remove(&r) },
			org: r.org, sequence: r.sequence, checks: checksFor(table), tables: []string{table}, unsaid: unsaid(&r, "deleted"),
		})
		for _, distance := range []int{1, len(rows) / 2} {
			other := rows[(i+distance)%len(rows)]
			if sameContent(&r, &other) {
				continue
			}
			first := r
			if other.org == r.org && other.sequence < r.sequence {
				first = other
			}
			label := fmt.Sprintf("%s %d of %s exchanged with one of %s", table, i, r.org, other.org)
			s.try(crime{
				name: label, commit: func(s *scene) error { return s.exchange(&r, &other) },
				org: first.org, sequence: first.sequence, tables: []string{table},
			})
		}
	}
}

func sameContent(a, b *row) bool {
	swapped := a.with(placesOf(b))
	return fmt.Sprint(swapped.values) == fmt.Sprint(b.values)
}

func placesOf(r *row) map[string]any {
	place := map[string]any{}
	for _, name := range places[r.table] {
		for i, column := range r.columns {
			if column == name {
				place[name] = r.values[i]
			}
		}
	}
	return place
}

func (s *scene) exchange(a, b *row) error {
	inA, inB := b.with(placesOf(a)), a.with(placesOf(b))
	for _, step := range []func() error{
		func() error { return s.remove(a) }, func() error { return s.remove(b) },
		func() error { return s.insert(&inA) }, func() error { return s.insert(&inB) },
	} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}
