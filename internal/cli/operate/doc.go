// Package operate holds the commands that work on a store, for the operator of a server.
package operate
