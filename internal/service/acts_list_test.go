package service_test

import (
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"countersign/internal/ledger"
	"countersign/internal/service"
	"countersign/internal/servicetest"
	"countersign/internal/testdb"
)

// hisAct is a forged act.
const hisAct = `{"action":"organization.update","his":true,"sequence":1}`

// The audit log is listed as its authenticated end proves it. An act that was changed, inserted or
// deleted keeps its position, shows only its number, and becomes a finding.
//
//countersign:race
func TestForgedActsAreMarked(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		edit   string // an update, or, without an argument, a deletion
		arg    any
		before int64
		limit  int
		want   string // the numbers that are marked
	}{
		"changed":              {"acts SET body = ? WHERE sequence = 2", []byte(hisAct), 0, 10, "2 1"},
		"not even text":        {"acts SET body = ? WHERE sequence = 3", []byte{0xff}, 0, 10, "3 2 1"},
		"the first":            {"acts SET body = ? WHERE sequence = 1", []byte(hisAct), 0, 10, "1"},
		"an older page":        {"acts SET body = ? WHERE sequence = 3", []byte(hisAct), 3, 1, "2"},
		"removed":              {"acts WHERE sequence = 2", nil, 0, 10, "2 1"},
		"the newest removed":   {"acts WHERE sequence = 4", nil, 0, 3, "4 3 2"},
		"the oldest removed":   {"acts WHERE sequence = 1", nil, 0, 10, "1"},
		"all removed":          {"acts", nil, 0, 3, "4 3 2"},
		"put after the end":    {"acts SET sequence = ? WHERE sequence = 4", 500, 0, 3, "500 4 3"},
		"far after the end":    {"acts SET sequence = ? WHERE sequence = 4", int64(1)<<62 - 1, 0, 1, "4611686018427387903"},
		"put before the first": {"acts SET sequence = ? WHERE sequence = 1", -5, 0, 10, "1"},
		"two exchanged":        {"acts SET sequence = 5 - sequence + ? WHERE sequence = 4", 99, 0, 2, "100 4"},
		"the end's count":      {"act_logs SET count = ?", 3, 0, 10, "4 3 2 1"},
		"the end's hash":       {"act_logs SET last_hash = ?", make([]byte, 32), 0, 2, "4 3"},
		"the end's mac":        {"act_logs SET mac = ?", []byte{}, 0, 2, "4 3"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
				g := govern(t, db)
				g.addActs(4)
				whole, scene := g.acts(), g.scene()
				if test.arg == nil {
					done(t, scene.exec("DELETE FROM "+test.edit))
				} else if err := scene.update(test.edit, test.arg); err != nil {
					if !strings.Contains(err.Error(), "acts_sequence_check") { // the schema of PostgreSQL refuses it
						t.Error(err)
					}
					return
				}
				page := must[[]*ledger.StoredAct](t)(g.Acts(t.Context(), g.who.admin, test.before, test.limit))
				if diff := cmp.Diff(test.want, marked(t, page, whole)); diff != "" {
					t.Errorf("what is marked (-want +got):\n%s", diff)
				}
				servicetest.Eventually(t, "a finding", func() bool {
					findings := must[[]*service.Finding](t)(g.Operator().Findings(t.Context(), g.who.slug))
					return slices.ContainsFunc(findings, func(f *service.Finding) bool { return f.Check == string(ledger.CheckAuditLog) })
				})
			})
		})
	}
}

// A process that has read the log before still shows acts older than a forged one, and a new
// process does not. Both show everything once the act is restored.
//
//countersign:race
func TestActsThatWereProvenAreShown(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		g := govern(t, db)
		const acts = 230
		g.addActs(acts)
		whole, scene := g.acts(), g.scene()
		body := must[[]*ledger.StoredAct](t)(g.store.Acts(t.Context(), g.who.id, 226, 1))[0].Body
		for _, test := range []struct {
			body        []byte
			before      int64
			limit       int
			fresh, seen string
		}{
			{[]byte(hisAct), acts + 1, 7, "225 224", "225 224"},
			{[]byte(hisAct), 203, 4, "202 201 200 199", "202 201"},
			{[]byte(hisAct), 101, 2, "100 99", ""},
			{body, acts + 1, 10, "", ""},
			{body, 203, 10, "", ""},
			{body, 5, 10, "", ""},
		} {
			done(t, scene.update("acts SET body = ? WHERE sequence = 225", test.body))
			for reader, want := range map[*service.Service]string{g.replica(): test.fresh, g.Service: test.seen} {
				page := must[[]*ledger.StoredAct](t)(reader.Acts(t.Context(), g.who.admin, test.before, test.limit))
				if diff := cmp.Diff(want, marked(t, page, whole)); diff != "" {
					t.Errorf("before %d, what is marked (-want +got):\n%s", test.before, diff)
				}
			}
		}
	})
}

// addActs appends acts until there are count.
func (g *governed) addActs(count int) {
	g.t.Helper()
	for i := len(g.acts()); i < count; i++ {
		_, err := g.CreateSignIn(g.t.Context(), g.who.admin, g.who.member.Key)
		done(g.t, err)
	}
}

// marked returns the numbers of the marked acts. The others must be unchanged.
func marked(t *testing.T, page []*ledger.StoredAct, whole []*ledger.Act) string {
	t.Helper()
	var numbers []string
	for _, act := range page {
		if act.Tampered {
			if act.Body != nil {
				t.Errorf("act %d is marked and shows %s", act.Sequence, act.Body)
			}
			numbers = append(numbers, strconv.FormatInt(act.Sequence, 10))
			continue
		}
		if act.Sequence > int64(len(whole)) {
			continue // of a finding
		}
		if diff := cmp.Diff(whole[act.Sequence-1], must[*ledger.Act](t)(ledger.DecodeAct(act.Body))); diff != "" {
			t.Errorf("act %d (-was +is):\n%s", act.Sequence, diff)
		}
	}
	return strings.Join(numbers, " ")
}
