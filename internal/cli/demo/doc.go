// Package demo implements the demo command, a short tour on a temporary store.
package demo
