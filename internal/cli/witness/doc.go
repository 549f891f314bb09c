// Package witness holds the commands of a witness of transparency logs.
package witness
