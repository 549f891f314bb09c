//go:build !race

package main

// memoryFactor is how many times as much memory a server may use.
const memoryFactor = 1
