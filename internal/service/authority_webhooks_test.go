package service_test

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"countersign/internal/fault"
	"countersign/internal/ledger"
	"countersign/internal/notify"
	"countersign/internal/service"
	"countersign/internal/store"
	"countersign/internal/testdb"
)

// editEachColumn changes every column of a row in every way, and restores the row after each. The
// row is found by its key columns. Edits that the database refuses, and columns that decide
// nothing, are skipped.
func (s *scene) editEachColumn(was *row, key []string, idle map[string]bool, visit func(edit string)) {
	s.t.Helper()
	tried := make(map[string]int)
	for i, column := range was.columns {
		if idle[column] {
			continue
		}
		others := mutations(was.values[i], nil)
		for _, name := range slices.Sorted(maps.Keys(others)) {
			forged := was.with(map[string]any{column: others[name]})
			err := s.overwrite(was, &forged, key)
			if err == nil && s.holds(was, key) {
				err = errUnchanged // to the database the value is the one that was there
			}
			if errors.Is(err, errUnchanged) {
				continue
			}
			tried[column]++
			if err != nil && isConstraint(err) {
				continue
			}
			done(s.t, err)
			visit(fmt.Sprintf("%s.%s %s", was.table, column, name))
			done(s.t, s.overwrite(&forged, was, key))
		}
		if tried[column] == 0 {
			s.t.Errorf("%s.%s was never edited", was.table, column)
		}
	}
}

// overwrite replaces all columns of a row that is found by its key.
func (s *scene) overwrite(old, with *row, key []string) error {
	var set, where []string
	var args []any
	for i, column := range with.columns {
		if sameValue(old.values[i], with.values[i]) {
			continue
		}
		args = append(args, with.values[i])
		set = append(set, column+" = "+s.dialect.mark(len(args)))
	}
	for _, column := range key {
		args = append(args, old.value(column))
		where = append(where, column+" = "+s.dialect.mark(len(args)))
	}
	return s.exec("UPDATE "+with.table+" SET "+strings.Join(set, ", ")+" WHERE "+strings.Join(where, " AND "), args...)
}

// holds reports whether the table has exactly this row.
func (s *scene) holds(wanted *row, key []string) bool {
	s.t.Helper()
	return slices.ContainsFunc(s.rowsOf(wanted.table), func(r row) bool {
		for i := range r.values {
			if !sameValue(r.values[i], wanted.values[i]) {
				return false
			}
		}
		return len(key) > 0
	})
}

// An endpoint whose row was changed or inserted outside the service receives nothing. The other
// endpoints are notified of it, lists show only that it was tampered with, and an admin can delete
// it.
func TestForgedWebhooksAreToldNothing(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		g := govern(t, db)
		scene := g.scene()
		victim := g.hook()
		was := scene.last("webhooks")
		watcher := g.hook(string(notify.LedgerTamperFound))
		told := 0
		scene.editEachColumn(&was, []string{"id"}, nil, func(edit string) {
			g.kill(edit)
			notices, deliveries := g.fanOut()
			for _, job := range deliveries {
				if !strings.Contains(string(job.Body), watcher.ID.String()) {
					t.Errorf("%s: a forged endpoint is told %s", edit, job.Body)
				}
			}
			told += strings.Count(strings.Join(kindsOf(notices), " "), string(notify.LedgerTamperFound))
			for _, shown := range must[[]*store.WebhookRecord](t)(g.Webhooks(t.Context(), g.who.admin)) {
				if shown.ID == watcher.ID {
					continue
				}
				if nothing := (store.WebhookRecord{ID: shown.ID, Org: shown.Org, Tampered: true}); fmt.Sprint(*shown) != fmt.Sprint(nothing) {
					t.Errorf("%s: it is listed as %+v", edit, shown)
				}
				_, err := g.TestWebhook(t.Context(), g.who.admin, shown.ID)
				checkCode(t, edit+": a test", err, fault.CodeEvidenceTampered)
			}
			g.deactivateKillSwitch()
			g.fanOut()
			if !strings.Contains(edit, "webhooks.org_id") && !strings.Contains(edit, "webhooks.deleted_at") {
				g.auditFinds(edit, ledger.CheckRegistry)
			}
		})
		if told == 0 {
			t.Error("nobody is told that an endpoint was changed")
		}
		// As it was, it is told again.
		g.kill("a drill")
		if _, deliveries := g.fanOut(); len(deliveries) != 1 {
			t.Errorf("%d deliveries to the endpoint as it was, want 1", len(deliveries))
		}
		// Deleted, it stays deleted, and the other one is still told.
		done(t, scene.update("webhooks SET url = 'http://127.0.0.1:9/his' WHERE id = ?", was.value("id")))
		done(t, g.DeleteWebhook(t.Context(), g.who.admin, victim.ID))
		if left := must[[]*store.WebhookRecord](t)(g.Webhooks(t.Context(), g.who.admin)); len(left) != 1 || left[0].ID != watcher.ID {
			t.Errorf("after the deletion there are %+v", left)
		}
		done(t, scene.update("webhooks SET deleted_at = NULL WHERE id = ?", was.value("id")))
		for _, shown := range must[[]*store.WebhookRecord](t)(g.Webhooks(t.Context(), g.who.admin)) {
			if shown.ID == victim.ID && !shown.Tampered {
				t.Error("an endpoint that was deleted is there again")
			}
		}
	})
}

// Deleting an inserted endpoint leaves the count of endpoints unchanged, so the others still
// receive notifications.
func TestDeletingAForgedWebhookSilencesNobody(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		g := govern(t, db)
		scene := g.scene()
		own := g.hook()
		inserted := ledger.WebhookID{UUID: ledger.NewTimedID(1, [10]byte{7})}
		genuine := scene.last("webhooks")
		done(t, scene.insert(ptr(genuine.with(map[string]any{"id": inserted.UUID[:]}))))
		done(t, g.DeleteWebhook(t.Context(), g.who.admin, inserted))
		g.kill("a drill")
		_, deliveries := g.fanOut()
		if len(deliveries) != 1 || !strings.Contains(string(deliveries[0].Body), own.ID.String()) {
			t.Errorf("%d deliveries, want one to the endpoint of the organization", len(deliveries))
		}
		checkCode(t, "a delivery to it", deliveryError(g, deliveries[0]), "")
	})
}

// deliveryError returns why a delivery cannot be made.
func deliveryError(g *governed, job *service.Job) error {
	_, err := g.Jobs().Delivery(g.t.Context(), job)
	return err
}
