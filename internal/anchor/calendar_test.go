package anchor_test

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
)

// The bytes of the format, spelled out again: the package under test must not be the only one to
// define them.
const (
	magic       = "\x00OpenTimestamps\x00\x00Proof\x00\xbf\x89\xe2\xe8\x84\xe8\x92\x94\x01\x08"
	sha256Op    = "\x08"
	unknownOp   = "\x67" // Keccak-256 in other implementations
	fork        = "\xff"
	pendingKind = "\x00\x83\xdf\xe3\x0d\x2e\xf9\x0c\x8e"
	bitcoinKind = "\x00\x05\x88\x96\x0d\x73\xd7\x19\x01"
	unknownKind = "\x00\x01\x02\x03\x04\x05\x06\x07\x08"
)

func counted(data string) string {
	return string(binary.AppendUvarint(nil, uint64(len(data)))) + data
}
func appendOp(data string) string  { return "\xf0" + counted(data) }
func prependOp(data string) string { return "\xf1" + counted(data) }
func pending(uri string) string    { return pendingKind + counted(counted(uri)) }
func unknown(data string) string   { return unknownKind + counted(data) }
func inBlock(height int) string {
	return bitcoinKind + counted(string(binary.AppendUvarint(nil, uint64(height))))
}

func hashed(parts ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(parts, "")))
	return string(sum[:])
}

// calendar is a small OpenTimestamps calendar behind a real socket.
type calendar struct {
	url    string
	answer http.HandlerFunc // replaces its own handler if set

	mutex     sync.Mutex
	submitted []string          // commitments, in order
	confirmed map[string]string // the rest of the path, by commitment
	asked     int
}

func startCalendar(t *testing.T) *calendar {
	t.Helper()
	running := &calendar{confirmed: map[string]string{}}
	routes := http.NewServeMux()
	routes.HandleFunc("POST /digest", running.submit)
	routes.HandleFunc("GET /timestamp/{commitment}", running.redeem)
	server := httptest.NewServer(http.HandlerFunc(func(writer http.ResponseWriter, request *http.Request) {
		if running.answer != nil {
			running.answer(writer, request)
			return
		}
		routes.ServeHTTP(writer, request)
	}))
	t.Cleanup(server.Close)
	running.url = server.URL
	return running
}

// submit mixes the digest with its own salt, like real calendars, and promises to have the result
// confirmed.
func (c *calendar) submit(writer http.ResponseWriter, request *http.Request) {
	digest, err := io.ReadAll(request.Body)
	if err != nil || len(digest) != sha256.Size || request.Header.Get("Accept") != "application/vnd.opentimestamps.v1" {
		writer.WriteHeader(http.StatusBadRequest)
		return
	}
	c.mutex.Lock()
	defer c.mutex.Unlock()
	salt := c.salt(len(c.submitted))
	c.submitted = append(c.submitted, hashed(string(digest), salt))
	_, _ = io.WriteString(writer, appendOp(salt)+sha256Op+pending(c.url))
}

// salt differs between calendars.
func (c *calendar) salt(count int) string { return fmt.Sprintf("%s-%d", c.url[len(c.url)-5:], count) }

func (c *calendar) redeem(writer http.ResponseWriter, request *http.Request) {
	commitment, err := hex.DecodeString(request.PathValue("commitment"))
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.asked++
	rest, found := c.confirmed[string(commitment)]
	if err != nil || !found {
		http.Error(writer, "Pending confirmation in Bitcoin blockchain", http.StatusNotFound)
		return
	}
	_, _ = io.WriteString(writer, rest)
}

// confirm puts everything that was submitted into one transaction of one block.
func (c *calendar) confirm(chain *chain, height int) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	all := hashed(slices.Sorted(slices.Values(c.submitted))...)
	const before, after, sibling = "version and inputs", "locktime", "the other transaction, hashed..."
	transaction := hashed(hashed(before, all, after))
	root := hashed(hashed(transaction, sibling))
	chain.mine([32]byte([]byte(root)), height)
	sorted := slices.Sorted(slices.Values(c.submitted))
	for i, commitment := range sorted {
		way := ""
		if left := strings.Join(sorted[:i], ""); left != "" {
			way += prependOp(left)
		}
		if right := strings.Join(sorted[i+1:], ""); right != "" {
			way += appendOp(right)
		}
		c.confirmed[commitment] = way + sha256Op + prependOp(before) + appendOp(after) + sha256Op + sha256Op +
			appendOp(sibling) + sha256Op + sha256Op + inBlock(height)
	}
}
