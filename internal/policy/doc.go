// Package policy parses policy documents and finds the rules that apply to an action.
//
// A document is accepted as a whole or not at all: when Parse returns a Set, every condition has
// been type-checked, bounded in cost and compiled. Match then only runs programs over the facts
// that it is given. A rule that cannot be evaluated is reported as failed, never as "does not
// apply".
//
// The package is pure: it uses no clock, files, network or randomness.
package policy
