package main

import (
	"context"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

const (
	// quietTime is how long the heap must not have been collected before a server counts
	// as quiet: under load that happens several times a second.
	quietTime = 5 * time.Second
	// worthReturning is how many bytes must have come in use, or into the runtime's
	// keeping, since memory was last returned, for it to be worth a collection.
	worthReturning = 32 << 20
)

// returnMemory gives the memory of a server that has fallen quiet back to the system,
// until ctx ends. The heap may grow to several times what is in use before it is collected
// (see tuneRuntime), and without requests it is not collected at all.
func returnMemory(ctx context.Context) {
	ticker := time.NewTicker(quietTime)
	defer ticker.Stop()
	var kept, collections uint64 // bytes that were left the last time; collections until then
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		held, seen := heapHeld()
		if seen == collections && held > kept+worthReturning {
			debug.FreeOSMemory()
			held, seen = heapHeld()
			kept = held
		}
		kept, collections = min(kept, held), seen
	}
}

// heapHeld is how many bytes of the system's the heap holds, used or not, and how often it
// was collected.
func heapHeld() (bytes, collections uint64) {
	samples := []metrics.Sample{
		{Name: "/memory/classes/heap/objects:bytes"}, {Name: "/memory/classes/heap/unused:bytes"},
		{Name: "/memory/classes/heap/free:bytes"}, {Name: "/gc/cycles/total:gc-cycles"},
	}
	metrics.Read(samples)
	return samples[0].Value.Uint64() + samples[1].Value.Uint64() + samples[2].Value.Uint64(), samples[3].Value.Uint64()
}
