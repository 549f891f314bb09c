package service_test

import (
	"slices"
	"testing"

	"countersign/internal/ledger"
)

// acts reads the whole audit log, oldest first.
func (g *governed) acts() []*ledger.Act {
	g.t.Helper()
	stored := must[[]*ledger.StoredAct](g.t)(g.Acts(g.t.Context(), g.who.admin, 0, 10_000))
	slices.Reverse(stored)
	acts := make([]*ledger.Act, 0, len(stored))
	for _, s := range stored {
		acts = append(acts, must[*ledger.Act](g.t)(ledger.DecodeAct(s.Body)))
	}
	return acts
}

type wantedAct struct{ action, actor, target string }

// checkActs wants exactly these acts after the first so many.
func (g *governed) checkActs(t testing.TB, after int, want []wantedAct) {
	t.Helper()
	var got []wantedAct
	for _, act := range g.acts()[after:] {
		got = append(got, wantedAct{act.Action, act.Actor.Name, act.Target})
	}
	if !slices.Equal(got, want) {
		t.Errorf("the audit log says %v, want %v", got, want)
	}
}
