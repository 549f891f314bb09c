package storetest

import (
	"context"
	"errors"
	"testing"

	"countersign/internal/store"
)

var probeCases = []testCase{
	{name: "a store that takes writes passes a probe", run: passesProbe},
	{name: "a cancelled probe writes nothing", run: abandonedProbe},
}

func passesProbe(t *testing.T, w *world) {
	other := w.open(t)
	for range 3 {
		for _, s := range []store.Store{w.Store, other} {
			if err := s.Probe(t.Context()); err != nil {
				t.Errorf("probe: %v", err)
			}
		}
	}
	if err := w.Ping(t.Context()); err != nil {
		t.Errorf("ping: %v", err)
	}
}

func abandonedProbe(t *testing.T, w *world) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := w.Probe(ctx); !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("error %v, want %v", err, store.ErrUnavailable)
	}
}
