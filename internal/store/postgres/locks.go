package postgres

import (
	"cmp"
	"encoding/binary"
	"slices"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

// Organizations are held with advisory locks and not with FOR SHARE, which would
// write to the organization's row in every transaction, with all replicas queueing
// for that one page. They end with the transaction, wait in line (those who hold
// an organization after someone who governs it has asked come after them), and
// need no row to be there.
//
// The first of a lock's two numbers is the oid of the table that it is about, so
// that it is another lock than those of other programs, of other schemas and of
// goose; the second is made of the id. Two ids of one number wait for each other
// without need, and that is all.
//
// They stand alone in their statement, for a statement sees what was committed
// before it began: what the locks protect is read by a later one.
const (
	lockOrganizationsSQL = `select case when n.exclusive
			then pg_advisory_xact_lock('organizations'::regclass::oid::int, n.key::int)
			else pg_advisory_xact_lock_shared('organizations'::regclass::oid::int, n.key::int) end
		from unnest($1::bigint[], $2::bool[]) n(key, exclusive)`
	// Two who begin a log are in order too, when there is no row yet to lock.
	lockLogsSQL = `select pg_advisory_xact_lock('act_logs'::regclass::oid::int, n.key::int) from unnest($1::bigint[]) n(key)`
)

// lockKey is the second number of an id's lock.
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

// lockOrganizations takes each lock once, in order: one that is wanted both ways
// is exclusive from the beginning, for two who had it shared and wanted more
// would wait for each other.
func lockOrganizations(x *exchange, needs *store.Needs) {
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
	// Stable: of one key, the exclusive lock stays first and is the one kept.
	slices.SortStableFunc(locks, func(a, b orgLock) int { return cmp.Compare(a.key, b.key) })
	locks = slices.CompactFunc(locks, func(a, b orgLock) bool { return a.key == b.key })
	x.send(lockOrganizationsSQL,
		ints(locks, func(l orgLock) int64 { return int64(l.key) }),
		bools(locks, func(l orgLock) bool { return l.exclusive }))
}

// askLogs locks and loads audit logs.
func askLogs(x *exchange, orgs []ledger.OrgID, loaded *store.Loaded) {
	if len(orgs) == 0 {
		return
	}
	wanted := distinct(orgs)
	keys := make([]int32, len(wanted))
	for i, org := range wanted {
		keys[i] = lockKey(org.UUID)
	}
	slices.Sort(keys)
	x.send(lockLogsSQL, ints(keys, func(key int32) int64 { return int64(key) }))
	ask(x, loadLogsSQL, readLog, func(l *ledger.ActLog) { loaded.Logs[l.Org] = l }, ids(wanted, orgUUID))
}
