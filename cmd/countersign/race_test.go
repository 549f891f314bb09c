//go:build race

package main

// memoryFactor is how many times as much memory a server may use: the race detector takes that much.
const memoryFactor = 10
