package classify

// class is the role of a byte in the words of a name. Bytes beyond ASCII count as lower-case
// letters: they match nothing and never split a word.
type class uint8

const (
	separator class = iota
	lower
	upper
	digit
)

// classes is a table because every byte of every name is looked up.
var classes = func() (table [256]class) {
	for b := range table {
		switch {
		case 'a' <= b && b <= 'z' || b >= 0x80:
			table[b] = lower
		case 'A' <= b && b <= 'Z':
			table[b] = upper
		case '0' <= b && b <= '9':
			table[b] = digit
		}
	}
	return table
}()

func classOf(b byte) class { return classes[b] }

// nextWord returns the bounds of the first word of s from an index on. start is len(s) if there is
// none. Words end at separators, between letters and digits, and at the humps of camel case:
// HTTPServer2 is HTTP, Server, 2.
func nextWord(s string, from int) (start, end int) {
	for from < len(s) && classOf(s[from]) == separator {
		from++
	}
	if from == len(s) {
		return from, from
	}
	first := classOf(s[from])
	end = endOfClass(s, from, first)
	if first != upper || end == len(s) || classOf(s[end]) != lower {
		return from, end
	}
	if end-from > 1 {
		return from, end - 1 // the last capital starts the next word
	}
	return from, endOfClass(s, end, lower)
}

func endOfClass(s string, from int, c class) int {
	for from < len(s) && classOf(s[from]) == c {
		from++
	}
	return from
}

// appendNormal appends the words of s in lower case, joined by underscores. Names are looked up in
// this spelling.
func appendNormal(dst []byte, s string) []byte {
	for start, end := nextWord(s, 0); start < len(s); start, end = nextWord(s, end) {
		if len(dst) > 0 {
			dst = append(dst, '_')
		}
		dst = appendLower(dst, s[start:end])
	}
	return dst
}

func appendLower(dst []byte, s string) []byte {
	for i := range len(s) {
		dst = append(dst, lowerByte(s[i]))
	}
	return dst
}

func lowerByte(b byte) byte {
	if 'A' <= b && b <= 'Z' {
		return b + ('a' - 'A')
	}
	return b
}

// name is what the words of an action's name say.
type name struct {
	categories categorySet
	reading    bool // it only reads
}

func readName(s string) name {
	var buffer [64]byte
	var acts, things categorySet
	reading, connected, last := false, false, wordNone
	for start, end := nextWord(s, 0); start < len(s); start, end = nextWord(s, end) {
		word := words[string(appendLower(buffer[:0], s[start:end]))]
		switch word.kind {
		case wordRead:
			reading = reading || firstWord(s, start)
		case wordConnective:
			connected = true
		case wordAct:
			acts |= word.categories
		case wordThing:
			things |= word.categories
		}
		last = word.kind
	}
	if last == wordTransfer {
		things |= financial
	}
	reading = reading && !connected
	if reading {
		return name{categories: acts, reading: acts&dataModification == 0}
	}
	return name{categories: acts | things}
}

// firstWord reports whether only separators precede an index.
func firstWord(s string, start int) bool {
	first, _ := nextWord(s, 0)
	return first == start
}
