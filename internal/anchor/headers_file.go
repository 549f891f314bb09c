package anchor

import (
	"bufio"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"strconv"
	"strings"
)

const (
	maxHeaderFile = 1 << 30 // five times what a million blocks take
	maxHeaderLine = 1 << 10
	linesPerCheck = 1 << 12
)

// headerFile is a text file with a line "HEIGHT HEADER" for each block, the header in hexadecimal.
// Empty lines and those that start with # are ignored. It is read again each time, so that it can
// grow.
type headerFile struct{ path string }

func (f headerFile) Header(ctx context.Context, height int) ([80]byte, error) {
	file, err := os.Open(f.path)
	if err != nil {
		return [80]byte{}, faultf(Unavailable, "open the file of block headers: %w", withoutPath(err))
	}
	defer file.Close()
	lines := bufio.NewScanner(io.LimitReader(file, maxHeaderFile))
	lines.Buffer(nil, maxHeaderLine)
	for number := 1; lines.Scan(); number++ {
		if number%linesPerCheck == 0 && ctx.Err() != nil {
			return [80]byte{}, faultf(Unavailable, "read the file of block headers: %w", ctx.Err())
		}
		found, text, ok := parseHeaderLine(lines.Text())
		if !ok {
			return [80]byte{}, faultf(Malformed, "line %d of the file of block headers is not a height and a header in hexadecimal", number)
		}
		if found == height {
			return decodeHeader("the file of block headers", text)
		}
	}
	if err := lines.Err(); err != nil {
		return [80]byte{}, faultf(Unavailable, "read the file of block headers: %w", withoutPath(err))
	}
	return [80]byte{}, faultf(Unavailable, "the file of block headers does not have block %d: add it", height)
}

// parseHeaderLine returns the height -1 for a line that is ignored.
func parseHeaderLine(line string) (height int, text string, ok bool) {
	line = strings.TrimSpace(line)
	if line == "" || line[0] == '#' {
		return -1, "", true
	}
	number, text, ok := strings.Cut(line, " ")
	height, err := strconv.Atoi(number)
	return height, text, ok && err == nil && height >= 0
}

func withoutPath(err error) error {
	var layer *fs.PathError
	if errors.As(err, &layer) {
		return layer.Err
	}
	return err
}
