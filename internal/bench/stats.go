package bench

import (
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

func median(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	middle := len(sorted) / 2
	if len(sorted)%2 == 1 {
		return sorted[middle]
	}
	return (sorted[middle-1] + sorted[middle]) / 2
}

func medianOf[T any](all []T, value func(T) float64) float64 {
	values := make([]float64, 0, len(all))
	for _, one := range all {
		values = append(values, value(one))
	}
	return median(values)
}

// medianInterval is the 95 % confidence interval of a median, by the ranks of the samples.
func medianInterval(samples []float64) (low, high float64) {
	sorted := slices.Sorted(slices.Values(samples))
	count := float64(len(sorted))
	rank := max(0, int(math.Floor((count-1.96*math.Sqrt(count))/2)))
	return sorted[rank], sorted[len(sorted)-1-rank]
}

// percentile is the smallest sample that p percent of all do not exceed. The
// samples must be sorted.
func percentile(sorted []time.Duration, p int) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	rank := (len(sorted)*p + 99) / 100
	return sorted[max(rank, 1)-1]
}

func quotient(a, b float64) float64 {
	if b == 0 {
		return 0
	}
	return a / b
}

// newest is the path with the highest version in it. There must be one.
func newest(paths []string) string {
	numbers := func(path string) (all []int) {
		for _, digits := range strings.FieldsFunc(path, func(r rune) bool { return r < '0' || r > '9' }) {
			number, _ := strconv.Atoi(digits) // no version is too large
			all = append(all, number)
		}
		return all
	}
	return slices.MaxFunc(paths, func(a, b string) int { return slices.Compare(numbers(a), numbers(b)) })
}
