// Package nightly says how much a generated test does: a little for every commit,
// far more in the long run that `make nightly` starts.
package nightly

import "os"

// Variable is set to 1 by the long run.
const Variable = "COUNTERSIGN_NIGHTLY"

// Count is how often a test repeats what it generates.
func Count(commit, long int) int {
	if os.Getenv(Variable) == "1" {
		return long
	}
	return commit
}
