//go:build race

package service_test

const racing = 1 // whether the race detector is on
