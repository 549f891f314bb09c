// Package operate implements the commands with which an operator works on a store.
package operate
