// Package store is the storage port: what the service asks of a database, and
// what every implementation guarantees. A store keeps records durably and in
// order, and finds them again. It knows no rule of the product and no key: it
// cannot tell an authentic record from a forged one, which is the work of package
// evidence.
//
// There are two implementations, sqlite and postgres. The conformance suite in
// storetest runs against both.
//
// These rules hold for every method unless its comment says otherwise:
//
//   - A method that writes returns nil only when the write is durable: it survives
//     a power failure. It writes all that it was given or nothing.
//   - A method that returns one record returns ErrNotFound when there is none. A
//     method that returns a list or a map leaves out what does not exist, and a
//     list has at most the given limit.
//   - A read sees every commit that was acknowledged before the read began, by
//     this process or another one.
//   - Any method may return ErrUnavailable. Only a method that writes may return
//     ErrOutcomeUnknown. When ctx ends before the commit, nothing is written;
//     a commit under way is never interrupted.
//   - A scan calls visit on the caller's goroutine, which may read from the store
//     meanwhile. An error of visit ends the scan and is returned as it is. A scan
//     is not one snapshot: a record that is committed during the scan may be
//     visited or not.
//   - The methods are safe for concurrent use, by several goroutines and, on
//     PostgreSQL, several processes.
//   - A moment (ledger.Time) is in milliseconds since 1970, UTC. At the moment at
//     which a record, a lease or a session ends, it has ended.
package store

import (
	"context"
	"errors"
)

// The errors that every implementation returns, wrapped or plain. Callers test for
// them with errors.Is.
var (
	// ErrNotFound means that there is no such record.
	ErrNotFound = errors.New("no such record")
	// ErrExists means that a record with that identity exists.
	ErrExists = errors.New("record exists already")
	// ErrUnavailable means that the store could not be reached or was busy. Nothing
	// was written, and the same call may be retried.
	ErrUnavailable = errors.New("store unavailable")
	// ErrOutcomeUnknown means that the answer to a commit was lost. The changes may
	// be durable or not; only reading or repeating the call tells.
	ErrOutcomeUnknown = errors.New("commit outcome unknown")
)

// The cause, wrapped together with ErrUnavailable or ErrOutcomeUnknown where it is
// known. It is for operators: no decision depends on it.
var (
	// ErrFull means that no space is left.
	ErrFull = errors.New("no space left")
	// ErrReadOnly means that the database, or its file system, accepts no writes.
	ErrReadOnly = errors.New("read-only")
	// ErrInputOutput means that the operating system failed to read or to write.
	ErrInputOutput = errors.New("reading or writing failed")
	// ErrDamaged means that what was read is not a well-formed database. The file is
	// damaged, or the disk returns wrong bytes: SQLite reports both in the same way.
	ErrDamaged = errors.New("damaged")
)

// Store is a whole database.
type Store interface {
	Writer
	Reader
	Directory
	Governance
	Verification
	Polls
	Jobs
	Signals
	KeyChecks
	Identity
	SignIns
	Unsealed
	Findings
	Budgets
	LegacyUses
	Imports
	Transparency
	Search
	Deliveries

	// Ping returns nil when the store can be read now.
	Ping(ctx context.Context) error
	// Probe makes a durable write that changes no record, to find out whether the
	// store accepts writes now.
	Probe(ctx context.Context) error
	// Backup writes a consistent copy to a new file, while the store is in use. It
	// returns ErrExists when the file exists, and errors.ErrUnsupported where the
	// database has better tools of its own.
	Backup(ctx context.Context, path string) error
	// Close waits for the transactions in progress and releases the database. The
	// store must not be used afterwards.
	Close() error
}
