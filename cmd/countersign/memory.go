package main

import (
	"context"
	"math"
	"os"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

const (
	// quietTime is how long the heap must not have been collected for a server to count as
	// idle: under load it is collected several times a second.
	quietTime = 5 * time.Second
	// worthReturning is by how many bytes the heap must have grown since memory was last
	// returned for another collection to be worthwhile.
	worthReturning = 32 << 20
)

// returnMemory returns the unused memory of an idle server to the system, until ctx
// ends. The heap may grow to several times what is in use before it is collected (see
// tuneRuntime), and without requests it is not collected at all.
func returnMemory(ctx context.Context) {
	ticker := time.NewTicker(quietTime)
	defer ticker.Stop()
	var kept, collections uint64 // bytes held and collections counted when memory was last returned
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

const (
	// softLimit is the memory in bytes up to which the heap may grow as far as tuneRuntime says. Above
	// it, the heap is collected more often.
	softLimit = 200 << 20
	// limitEvery is how often the limit is adjusted.
	limitEvery = time.Second
)

// limitMemory keeps a server that parses large bodies from taking several times what they need, until
// ctx ends. A limit below what is in use would only keep the collector busy, so the limit follows it.
func limitMemory(ctx context.Context) {
	if os.Getenv("GOMEMLIMIT") != "" {
		return
	}
	ticker := time.NewTicker(limitEvery)
	defer ticker.Stop()
	defer debug.SetMemoryLimit(math.MaxInt64)
	limit := uint64(0)
	for {
		used := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
		metrics.Read(used)
		if next := max(softLimit, used[0].Value.Uint64()*3/2); next != limit {
			limit = next
			debug.SetMemoryLimit(int64(min(limit, math.MaxInt64)))
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// heapHeld returns how many bytes the heap holds, used or not, and how often it was
// collected.
func heapHeld() (bytes, collections uint64) {
	samples := []metrics.Sample{
		{Name: "/memory/classes/heap/objects:bytes"}, {Name: "/memory/classes/heap/unused:bytes"},
		{Name: "/memory/classes/heap/free:bytes"}, {Name: "/gc/cycles/total:gc-cycles"},
	}
	metrics.Read(samples)
	return samples[0].Value.Uint64() + samples[1].Value.Uint64() + samples[2].Value.Uint64(), samples[3].Value.Uint64()
}
