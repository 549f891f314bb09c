// Package policy implements the commands that check, test, simulate and activate policy sets.
package policy
