package postgres

import (
	"cmp"
	"encoding/binary"
	"slices"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

// Organizations are locked with advisory locks instead of FOR SHARE, which would write to the
// organization's row in every transaction and make all replicas contend for one page. Advisory
// locks end with the transaction and need no row. They are fair: a shared lock requested after an
// exclusive one waits for it.
//
// The first of a lock's two numbers is the oid of the table that it protects, which separates it
// from the locks of other programs, other schemas and goose. The second is derived from the id. Two
// ids with the same number only wait for each other unnecessarily.
//
// The locks are taken in their own statement. A statement sees only what was committed before it
// started, so whatever the locks protect is read by a later one.
const (
	lockOrganizationsSQL = `select case when n.exclusive
			then pg_advisory_xact_lock('organizations'::regclass::oid::int, n.key::int)
			else pg_advisory_xact_lock_shared('organizations'::regclass::oid::int, n.key::int) end
		from unnest($1::bigint[], $2::bool[]) n(key, exclusive)`
	// An advisory lock also orders two transactions that start the same log, when there is no row
	// to lock yet.
	lockLogsSQL = `select pg_advisory_xact_lock('act_logs'::regclass::oid::int, n.key::int) from unnest($1::bigint[]) n(key)`
)

// lockKey returns the second number of an id's lock.
func lockKey(id [16]byte) int32 {
	var key uint32
	for part := range slices.Chunk(id[:], 4) {
		key ^= binary.BigEndian.Uint32(part)
	}
	return int32(key)
}

type orgLock struct {
	key       int32
	exclusive bool
}

// lockOrganizations takes each lock once, in order. An organization that is needed in both modes is
// locked exclusively from the start: two transactions upgrading a shared lock would deadlock.
func lockOrganizations(rt *roundTrip, needs *store.Needs) {
	if len(needs.Orgs)+len(needs.Govern) == 0 {
		return
	}
	locks := make([]orgLock, 0, len(needs.Orgs)+len(needs.Govern))
	for _, org := range needs.Govern {
		locks = append(locks, orgLock{lockKey(org.UUID), true})
	}
	for _, org := range needs.Orgs {
		locks = append(locks, orgLock{lockKey(org.UUID), false})
	}
	// The sort is stable, so for each key the exclusive lock comes first and is kept.
	slices.SortStableFunc(locks, func(a, b orgLock) int { return cmp.Compare(a.key, b.key) })
	locks = slices.CompactFunc(locks, func(a, b orgLock) bool { return a.key == b.key })
	rt.send(lockOrganizationsSQL,
		ints(locks, func(l orgLock) int64 { return int64(l.key) }),
		bools(locks, func(l orgLock) bool { return l.exclusive }))
}

// loadLogs locks and loads audit logs.
func loadLogs(rt *roundTrip, orgs []ledger.OrgID, loaded *store.Loaded) {
	if len(orgs) == 0 {
		return
	}
	wanted := distinct(orgs)
	keys := make([]int32, len(wanted))
	for i, org := range wanted {
		keys[i] = lockKey(org.UUID)
	}
	slices.Sort(keys)
	rt.send(lockLogsSQL, ints(keys, func(key int32) int64 { return int64(key) }))
	fetch(rt, loadLogsSQL, readLog, func(l *ledger.ActLog) { loaded.Logs[l.Org] = l }, ids(wanted, orgUUID))
}
