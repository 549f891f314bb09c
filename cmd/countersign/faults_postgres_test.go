package main

import (
	"context"
	"database/sql"
	"net/http"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"countersign/internal/nightly"
	"countersign/internal/testdb"
)

// A PostgreSQL that is frozen is told by /readyz, reads are answered 503 within the
// deadline, and the server goes on by itself when PostgreSQL does.
//
//countersign:norace its servers are processes
func TestFrozenPostgres(t *testing.T) {
	t.Parallel()
	cluster := testdb.NewCluster(t)
	f := startFaulty(t, "--database", cluster.URL(), "--keys", filepath.Join(t.TempDir(), "keys.json"))
	c := f.client()
	c.awaitStorage(t, http.StatusOK, "")
	receipt := c.seal(t).ReceiptID
	promised(t, "the frozen database shows", shownTime, func() time.Duration {
		cluster.Thaw()
		c.awaitStorage(t, http.StatusOK, "")
		cluster.Freeze(t)
		return c.awaitStorage(t, http.StatusServiceUnavailable, "does not answer")
	})
	cluster.Thaw()
	c.awaitStorage(t, http.StatusOK, "")
	cluster.Freeze(t)
	var asking sync.WaitGroup
	for _, path := range []string{"/v1/chains", "/v1/receipts/" + receipt, "/v1/receipts/" + receipt + "/verify", "/v1/audit-log", "/v1/approvals"} {
		asking.Go(func() {
			began := time.Now()
			status, body, err := c.send(t.Context(), http.MethodGet, path, "")
			took := time.Since(began).Round(100 * time.Millisecond)
			t.Logf("%s: %d after %s", path, status, took)
			if err != nil || status != http.StatusServiceUnavailable || problemCode(body) != "storage_unavailable" {
				t.Errorf("%s: status %d, %v: %s", path, status, err, body)
			}
			if took > 2*faultTime {
				t.Errorf("%s: answered after %s", path, took)
			}
		})
	}
	c.awaitStorage(t, http.StatusServiceUnavailable, "does not answer")
	asking.Wait()
	cluster.Thaw()
	c.awaitStorage(t, http.StatusOK, "")
	c.seal(t)
}

// When the primary is gone and its standby was promoted, writes resume within seconds,
// whether the primary has ended or does not answer any more, and nothing that was
// acknowledged is lost.
//
//countersign:norace its servers are processes
func TestPromotedStandby(t *testing.T) {
	t.Parallel()
	// The run of each commit takes the first, which is the harder one.
	ways := []struct {
		name  string
		leave func(*testdb.Cluster, testing.TB)
	}{{"frozen", (*testdb.Cluster).Freeze}, {"stopped", (*testdb.Cluster).Stop}}
	for _, way := range ways[:nightly.Count(1, len(ways))] {
		t.Run(way.name, func(t *testing.T) {
			t.Parallel()
			promised(t, "writes resume", 10*time.Second, func() time.Duration { return promote(t, way.leave) })
		})
	}
}

// promote takes the primary away, promotes its standby, and returns how long after that the first
// write was acknowledged.
func promote(t *testing.T, leave func(*testdb.Cluster, testing.TB)) (took time.Duration) {
	t.Helper()
	primary := testdb.NewCluster(t)
	standby := primary.Standby(t)
	f := startFaulty(t, "--database", primary.URL(standby), "--keys", filepath.Join(t.TempDir(), "keys.json"))
	c := f.client()
	receipt := c.seal(t).ReceiptID
	f.record(t.Context(), 4, 20)
	leave(primary, t)
	c.awaitStorage(t, http.StatusServiceUnavailable, "")
	standby.Promote(t)
	began := time.Now()
	for {
		status, body, err := c.send(t.Context(), http.MethodPost, "/v1/chains", `{"name":"after"}`)
		if err != nil {
			t.Fatal(err)
		}
		if status == http.StatusCreated {
			break
		}
		if time.Since(began) > 2*faultTime {
			t.Fatalf("status %d: %s", status, body)
		}
		<-time.After(100 * time.Millisecond)
	}
	took = time.Since(began)
	c.awaitStorage(t, http.StatusOK, "")
	if !c.valid(t, receipt) {
		t.Error("an acknowledged receipt is gone")
	}
	c.seal(t)
	return took
}

// A replica that is frozen in the middle of a transaction does not keep the kill switch at
// another one waiting for long: its session ends, and its locks with it.
//
//countersign:norace its servers are processes
func TestFrozenReplicaDelaysNoStop(t *testing.T) {
	t.Parallel()
	db := testdb.EmptyPostgres(t)
	keys := filepath.Join(t.TempDir(), "keys.json")
	f := startFaulty(t, "--database", testdb.WithParameter(t, db.URL, "application_name", "frozen"), "--keys", keys)
	healthy, err := startCrashServer(t.Context(), "--database", db.URL, "--keys", keys, "--heads", filepath.Join(t.TempDir(), "heads.json"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(healthy.dispose)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var load sync.WaitGroup
	load.Go(func() { f.record(ctx, 16, 1_000_000) })
	t.Cleanup(func() { _ = f.command.Process.Signal(syscall.SIGCONT) })

	c := (&faultyServer{crashServer: healthy, key: f.key}).client()
	promised(t, "the kill switch answers", 6*time.Second, func() time.Duration {
		freezeInTransaction(t, f, db)
		began := time.Now()
		status, body, err := c.send(t.Context(), http.MethodPost, "/v1/kill-switch/activate", `{"reason":"a test"}`)
		took := time.Since(began)
		if err != nil || status != http.StatusOK || took > faultTime {
			t.Errorf("activate: status %d after %s, %v: %s", status, took, err, body)
		}
		_ = f.command.Process.Signal(syscall.SIGCONT)
		c.call(t, http.MethodPost, "/v1/kill-switch/deactivate", "", &struct{}{})
		return took
	})
	cancel()
	load.Wait()
	f.client().awaitStorage(t, http.StatusOK, "")
}

// freezeInTransaction stops a server at a moment at which PostgreSQL waits for it inside a
// transaction.
func freezeInTransaction(t *testing.T, f *faultyServer, db *testdb.Database) {
	t.Helper()
	direct, err := sql.Open(db.Driver, db.Source)
	if err != nil {
		t.Fatal(err)
	}
	defer direct.Close()
	for began := time.Now(); time.Since(began) < deadline; {
		if err := f.command.Process.Signal(syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		<-time.After(20 * time.Millisecond) // what was under way at PostgreSQL comes to its end
		var idle int
		err := direct.QueryRowContext(t.Context(), `select count(*) from pg_stat_activity
			where application_name = 'frozen' and datname = current_database() and state = 'idle in transaction'`).Scan(&idle)
		if err != nil {
			t.Fatal(err)
		}
		if idle > 0 {
			return
		}
		if err := f.command.Process.Signal(syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
		<-time.After(7 * time.Millisecond)
	}
	t.Fatal("the server was never inside a transaction")
}
