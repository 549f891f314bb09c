package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"countersign/internal/nightly"
	"countersign/internal/witness"
)

// A witness that is killed at any moment while a log with two histories submits both
// has cosigned one of them in the end, and never forgets what it has cosigned. The
// histories part after a few leaves, and the kills fall around that.
//
//countersign:norace its witness is a process, and slower so
func TestKilledWitnessKeepsToOneHistory(t *testing.T) {
	t.Parallel()
	const common, largest = 3, 400
	state := filepath.Join(t.TempDir(), "witness")
	vkey := strings.TrimSpace(succeed(t, "witness", "init", "--state", state, "--name", "example.com/w"))
	histories := make([][2]*merkleLog, nightly.Count(3, 100))
	for i := range histories {
		first := newMerkleLog(t, fmt.Sprintf("example.com/log/%d", i)).grow(common, "common")
		second := first.fork().grow(largest, "second")
		histories[i] = [2]*merkleLog{first.grow(largest, "first"), second}
		succeed(t, "witness", "add", "--state", state, first.vkey)
	}
	for i, history := range histories {
		random := rand.New(rand.NewPCG(uint64(i), 7))
		seen := &cosignedRoots{}
		for _, goal := range []int{1 + random.IntN(4), 5 + random.IntN(4)} {
			address, kill := spawnWitness(t, state)
			killUnderLoad(t, vkey+"="+address, history, random, seen, goal, kill)
		}
		if !seen.allOf(history[0]) && !seen.allOf(history[1]) {
			t.Errorf("log %d: two histories were cosigned", i)
		}
	}
}

// killUnderLoad submits both histories side by side until a number of cosignatures
// was seen, and then kills the witness.
func killUnderLoad(t *testing.T, flag string, history [2]*merkleLog, random *rand.Rand, seen *cosignedRoots, goal int, kill func()) {
	t.Helper()
	ctx, end := context.WithTimeout(t.Context(), deadline)
	defer end()
	reached := seen.reaches(goal)
	var submitters sync.WaitGroup
	for _, l := range []*merkleLog{history[0], history[1], history[0], history[1]} {
		seed := random.Uint64()
		submitters.Go(func() { submitUntil(ctx, t, flag, l, rand.New(rand.NewPCG(seed, 1)), seen) })
	}
	select {
	case <-reached:
	case <-ctx.Done():
		t.Error("the witness has cosigned too little")
	}
	kill()
	end()
	submitters.Wait()
}

// cosignedRoots is everything that was cosigned of one log.
type cosignedRoots struct {
	mu          sync.Mutex // guards what follows
	checkpoints []cosignedCheckpoint
	goal        int
	reached     chan struct{} // closed when the goal is reached; nil without one
}

type cosignedCheckpoint struct {
	size int64
	log  *merkleLog
}

func (s *cosignedRoots) add(c cosignedCheckpoint) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.checkpoints = append(s.checkpoints, c)
	if s.reached != nil && len(s.checkpoints) >= s.goal {
		close(s.reached)
		s.reached = nil
	}
}

// reaches is closed when so many cosignatures, and one more at least, were seen.
func (s *cosignedRoots) reaches(goal int) <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	reached := make(chan struct{})
	s.goal, s.reached = goal, reached
	return reached
}

// largestSize is what the witness must know.
func (s *cosignedRoots) largestSize() (size int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.checkpoints {
		size = max(size, c.size)
	}
	return size
}

// allOf says whether every checkpoint is of one log's history.
func (s *cosignedRoots) allOf(l *merkleLog) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.checkpoints {
		if c.log != l && string(c.log.checkpoint(c.size)) != string(l.checkpoint(c.size)) {
			return false
		}
	}
	return true
}

// submitUntil submits checkpoints of one history, as a log does, until the context
// ends.
func submitUntil(ctx context.Context, t *testing.T, flag string, l *merkleLog, random *rand.Rand, seen *cosignedRoots) {
	target, err := witness.ParseTarget(flag)
	if err != nil {
		t.Error(err)
		return
	}
	client := witness.NewClient(target)
	old := int64(0)
	for ctx.Err() == nil {
		known := seen.largestSize()
		size := min(int64(len(l.leaves)), max(old, 1)+random.Int64N(3))
		_, err := client.Submit(ctx, l.checkpoint(size), old, l.proof(old, size))
		var conflict *witness.ConflictError
		switch {
		case err == nil:
			seen.add(cosignedCheckpoint{size, l})
			old = size
		case errors.As(err, &conflict):
			if old = conflict.Size; old < known {
				t.Errorf("the witness knows size %d, and has cosigned %d", old, known)
				return
			}
		}
	}
}

// spawnWitness starts a process that serves, and returns its address and a function
// that kills it.
func spawnWitness(t *testing.T, state string) (address string, kill func()) {
	t.Helper()
	log := newCrashLog()
	command := exec.Command(os.Args[0], "witness", "serve", "--listen", "127.0.0.1:0", "--state", state)
	command.Env, command.Stderr = crashEnvironment(), log
	if _, err := command.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	kill = func() {
		_ = command.Process.Signal(syscall.SIGKILL)
		_ = command.Wait()
	}
	select {
	case address = <-log.serving:
		return address, kill
	case <-time.After(crashStartTimeout):
		kill()
		t.Fatalf("the witness does not serve\n%s", log)
		return "", nil
	}
}
