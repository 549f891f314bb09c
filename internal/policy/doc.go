// Package policy reads policy documents and finds the rules that apply to an
// action.
//
// A document is accepted whole or not at all: by the time Parse returns a Set,
// every condition has been type-checked, bounded in cost and compiled. Match
// then only runs programs over the facts it is given, and what a rule cannot
// answer is reported as failed, never as "does not apply".
//
// The package is pure: it knows no time, files, network or randomness.
package policy
