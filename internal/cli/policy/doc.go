// Package policy holds the commands that check, test, simulate and activate policy sets.
package policy
