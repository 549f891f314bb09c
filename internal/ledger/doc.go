// Package ledger is the pure core of Countersign: what a chain, an event, a
// decision and a receipt are; how an action is decided, a chain sealed and a
// receipt verified. It reads no clock, no file, no network and no randomness:
// time, ids and keys arrive as arguments, so that every rule here can be tested
// as a table and repeated by an auditor.
package ledger
