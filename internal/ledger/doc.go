// Package ledger is the pure core of Countersign. It defines chains, events, decisions and
// receipts, how an action is decided, how a chain is sealed, and how a receipt is verified. It uses
// no clock, files, network or randomness: times, ids and keys are arguments, so that every rule can
// be tested with tables and reproduced by an auditor.
package ledger
