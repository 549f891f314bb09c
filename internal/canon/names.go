package canon

import "slices"

// compareNames orders by UTF-16 code units, as RFC 8785 demands, without
// encoding anything. UTF-8 has the same order with one exception: a code point
// above U+FFFF (first byte 0xF0 and up) is a surrogate pair in UTF-16, and
// surrogates sort before U+E000 to U+FFFF (first byte 0xEE or 0xEF).
func compareNames(a, b string) int {
	n := min(len(a), len(b))
	for i := range n {
		x, y := a[i], b[i]
		if x == y {
			continue
		}
		less := x < y
		if x >= 0xEE && y >= 0xEE && (x >= 0xF0) != (y >= 0xF0) {
			less = !less
		}
		if less {
			return -1
		}
		return 1
	}
	return len(a) - len(b)
}

// insertionSortLimit is where shifting members around becomes dearer than the
// general sort. Objects on the wire are nearly always below it.
const insertionSortLimit = 16

// sortMembers puts members into canonical order, and returns a name that
// occurs twice if there is one.
func sortMembers(members []Member) (name string, duplicate bool) {
	if ascending(members) { // like everything that the service wrote itself
		return "", false
	}
	if len(members) <= insertionSortLimit {
		insertionSort(members)
	} else {
		slices.SortFunc(members, func(a, b Member) int { return compareNames(a.Name, b.Name) })
	}
	for i := 1; i < len(members); i++ {
		if members[i-1].Name == members[i].Name {
			return members[i].Name, true
		}
	}
	return "", false
}

// ascending reports whether the members are in canonical order and none occurs twice.
func ascending(members []Member) bool {
	for i := 1; i < len(members); i++ {
		if compareNames(members[i-1].Name, members[i].Name) >= 0 {
			return false
		}
	}
	return true
}

func insertionSort(members []Member) {
	for i := 1; i < len(members); i++ {
		if compareNames(members[i-1].Name, members[i].Name) <= 0 {
			continue
		}
		moving := members[i]
		j := i
		for j > 0 && compareNames(members[j-1].Name, moving.Name) > 0 {
			members[j] = members[j-1]
			j--
		}
		members[j] = moving
	}
}
