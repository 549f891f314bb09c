// Package cli holds what the commands share: the process and its output, the flags that
// name a store and how it is opened, and the client of the API. It names no database
// driver: the main package fills in Databases.
package cli
