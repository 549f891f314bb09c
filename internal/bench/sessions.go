package bench

import (
	"bytes"
	"fmt"
	"sync"
	"sync/atomic"

	"countersign/internal/ledger"
)

// The requests are made once; between two of them only ids and keys of a fixed
// width are overwritten in place.
const (
	idWidth  = 36
	keyWidth = 24
)

const chainBody = `{"name":"bench-invoice-run","external_chain_id":"run-2048","environment":"production",` +
	`"metadata":{"team":"billing","region":"eu-central","release":"2.14.0"}}`

// The key goes last, so that its place is known from the end.
const (
	eventStart = `{"agent_name":"billing-agent","action_type":"tool_call","action_name":"`
	eventHead  = eventStart + `fetch_invoice",` +
		`"payload":{"invoice":"INV-20391","customer":{"id":48213,"name":"Example Ltd","country":"DE"},` +
		`"lines":[{"sku":"A-100","quantity":3,"unit":"piece"},{"sku":"B-220","quantity":12,"unit":"box"}],` +
		`"note":"monthly reconciliation of open items","dry_run":false},` +
		`"metadata":{"model":"none","trace":"00f067aa0ba902b7"},"idempotency_key":"`
	eventTail = `"}`
)

// actionNames are what the agent does in turn. They are of one length, to be
// overwritten in place.
var actionNames = []string{"fetch_invoice", "match_records", "draft_message", "update_ledger"}

func request(method, path, apiKey, body string) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s %s HTTP/1.1\r\nHost: countersign\r\nUser-Agent: countersign-bench\r\nAccept: application/json\r\n", method, path)
	if apiKey != "" {
		fmt.Fprintf(&b, "Authorization: Bearer %s\r\n", apiKey)
	}
	if body != "" {
		fmt.Fprintf(&b, "Content-Type: application/json\r\nContent-Length: %d\r\n", len(body))
	}
	b.WriteString("\r\n" + body)
	return b.Bytes()
}

var idPlace = string(bytes.Repeat([]byte{'0'}, idWidth))

// eventSession records actions in a chain of its own, and opens the next chain
// after so many.
type eventSession struct {
	open, event []byte
	chainAt     int
	key         []byte // the place of the idempotency key within event
	name        []byte // that of the action's name
	left        int
	count       uint64
}

const eventsPerChain = 50

func newEventSession(apiKey string, connection int) *eventSession {
	place := string(bytes.Repeat([]byte{'0'}, keyWidth))
	s := &eventSession{
		open:  request("POST", "/v1/chains", apiKey, chainBody),
		event: request("POST", "/v1/chains/"+idPlace+"/events", apiKey, eventHead+place+eventTail),
		count: uint64(connection) << 40, //nolint:gosec // connections are counted from zero
	}
	s.chainAt = bytes.Index(s.event, []byte(idPlace))
	end := len(s.event) - len(eventTail)
	s.key = s.event[end-keyWidth : end]
	nameAt := bytes.Index(s.event, []byte(eventStart)) + len(eventStart)
	s.name = s.event[nameAt : nameAt+len(actionNames[0])]
	return s
}

func (s *eventSession) step(c *connection) (bool, error) {
	if s.left == 0 {
		return false, s.openChain(c)
	}
	s.left--
	s.count++
	writeHex(s.key, s.count)
	copy(s.name, actionNames[s.count%uint64(len(actionNames))])
	return true, c.expect(s.event, `"policy_decision":"allow"`)
}

const idMember = `"id":"`

func (s *eventSession) openChain(c *connection) error {
	body, err := c.exchange(s.open)
	if err != nil {
		return err
	}
	id, err := idIn(body, idMember)
	copy(s.event[s.chainAt:], id)
	s.left = eventsPerChain
	return err
}

func writeHex(dst []byte, n uint64) {
	const digits = "0123456789abcdef"
	for i := len(dst) - 1; i >= 0; i-- {
		dst[i] = digits[n&15]
		n >>= 4
	}
}

// openedChains collects chains with their events, ready to be completed.
type openedChains struct {
	left atomic.Int64 // to open
	mu   sync.Mutex
	ids  []string
}

func (o *openedChains) add(id string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.ids = append(o.ids, id)
}

// openingSession opens chains and records the events that a completion seals.
type openingSession struct {
	*eventSession
	opened *openedChains
}

func (s *openingSession) step(c *connection) (bool, error) {
	if s.opened.left.Add(-1) < 0 {
		return false, errExhausted
	}
	if err := s.openChain(c); err != nil {
		return false, err
	}
	for range eventsPerCompletion {
		if _, err := s.eventSession.step(c); err != nil {
			return false, err
		}
	}
	s.opened.add(string(s.event[s.chainAt : s.chainAt+idWidth]))
	return true, nil
}

// queue hands ids to sessions, each once, or round and round.
type queue struct {
	ids     []string
	next    atomic.Int64
	endless bool
}

func (q *queue) take() (string, bool) {
	i := int(q.next.Add(1)) - 1
	if i >= len(q.ids) && !q.endless {
		return "", false
	}
	return q.ids[i%len(q.ids)], true
}

// idSession sends one request for each id of a queue.
type idSession struct {
	request []byte
	at      int    // where the id goes
	want    string // a text of every answer
	ids     *queue
}

func newIDSession(request []byte, place, want string, ids *queue) session {
	return &idSession{request: request, at: bytes.Index(request, []byte(place)), want: want, ids: ids}
}

func newCompletionSession(apiKey string, ids *queue) session {
	r := request("POST", "/v1/chains/"+idPlace+"/complete", apiKey, `{"outcome":"completed"}`)
	return newIDSession(r, idPlace, `"receipt_id":"`, ids)
}

func newCheckSession(ids *queue) session {
	return newIDSession(request("GET", "/v1/receipts/"+idPlace+"/verify", "", ""), idPlace, `"valid":true`, ids)
}

// tokenPlace is as long as a token.
const tokenPlace = "cvt_0000000000000000000000000000000000000000000"

func newTokenSession(ids *queue) session {
	return newIDSession(request("GET", "/public/v2/verify/"+tokenPlace, "", ""), tokenPlace, `"overall_status":"verified"`, ids)
}

func (s *idSession) step(c *connection) (bool, error) {
	id, ok := s.ids.take()
	if !ok {
		return false, errExhausted
	}
	copy(s.request[s.at:], id)
	return true, c.expect(s.request, s.want)
}

func receiptTexts(ids []ledger.ReceiptID) []string {
	texts := make([]string, len(ids))
	for i, id := range ids {
		texts[i] = id.String()
	}
	return texts
}
