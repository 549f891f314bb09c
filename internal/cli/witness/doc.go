// Package witness implements the commands of a witness of transparency logs.
package witness
