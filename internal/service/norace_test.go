//go:build !race

package service_test

const racing = 0 // whether the race detector is on
