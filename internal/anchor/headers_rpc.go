package anchor

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
)

const maxCookie = 1 << 10

// bitcoinCore queries a node with JSON-RPC.
type bitcoinCore struct {
	address *url.URL // without credentials
	login   func() (user, password string, err error)
	client  *http.Client
}

func newBitcoinCore(address *url.URL) (*bitcoinCore, error) {
	user, cookie := address.User, address.Query().Get("cookie")
	if (user == nil) == (cookie == "") {
		return nil, errors.New("bitcoin headers: give Bitcoin Core's address either USER:PASSWORD@ or ?cookie=FILE")
	}
	bare := *address
	bare.User, bare.RawQuery = nil, ""
	// Credentials are in a function, which no log line can print.
	node := &bitcoinCore{address: &bare, client: newClient(0)}
	node.login = func() (string, string, error) { return readCookie(cookie) }
	if user != nil {
		node.login = func() (string, string, error) {
			password, _ := user.Password()
			return user.Username(), password, nil
		}
	}
	return node, nil
}

// readCookie reads the file for each request, because a node writes a new one when it starts.
func readCookie(path string) (user, password string, err error) {
	file, err := os.Open(path) //nolint:gosec // the operator names the file
	if err != nil {
		return "", "", faultf(Unavailable, "open Bitcoin Core's cookie file: %w", withoutPath(err))
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, maxCookie))
	if err != nil {
		return "", "", faultf(Unavailable, "read Bitcoin Core's cookie file: %w", withoutPath(err))
	}
	user, password, ok := strings.Cut(strings.TrimSpace(string(text)), ":")
	if !ok {
		return "", "", faultf(Unavailable, "Bitcoin Core's cookie file does not contain USER:PASSWORD")
	}
	return user, password, nil
}

func (c *bitcoinCore) Header(ctx context.Context, height int) ([80]byte, error) {
	found, err := c.call(ctx, "getblockhash", height)
	if err != nil {
		return [80]byte{}, err
	}
	hash, err := decodeBlockHash(c.address.Host, found)
	if err != nil {
		return [80]byte{}, err
	}
	text, err := c.call(ctx, "getblockheader", hash, false)
	if err != nil {
		return [80]byte{}, err
	}
	return decodeHeader(c.address.Host, text)
}

// call returns the text result of a method.
func (c *bitcoinCore) call(ctx context.Context, method string, arguments ...any) (string, error) {
	request, err := c.request(ctx, method, arguments)
	if err != nil {
		return "", err
	}
	found, err := send(c.client, request, maxHeaderAnswer)
	if err != nil {
		return "", err
	}
	var reply struct {
		Result string `json:"result"`
		Error  *struct {
			Code int `json:"code"`
		} `json:"error"`
	}
	// A node answers its own errors with status 500 and a reply.
	err = json.Unmarshal(found.body, &reply)
	switch {
	case err == nil && reply.Error != nil:
		return "", faultf(Unavailable, "%s answered %s with error %d: the node may not have the block yet", c.address.Host, method, reply.Error.Code)
	case found.status != http.StatusOK:
		return "", statusFault(c.address.Host, found.status)
	case err != nil:
		return "", faultf(Malformed, "%s gave no JSON-RPC reply", c.address.Host)
	}
	return reply.Result, nil
}

func (c *bitcoinCore) request(ctx context.Context, method string, arguments []any) (*http.Request, error) {
	body, err := json.Marshal(map[string]any{"jsonrpc": "1.0", "id": "countersign", "method": method, "params": arguments})
	if err != nil {
		return nil, faultf(Malformed, "ask %s: %w", c.address.Host, err)
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, c.address.String(), bytes.NewReader(body))
	if err != nil {
		return nil, faultf(Malformed, "ask %s: %w", c.address.Host, withoutAddress(err))
	}
	user, password, err := c.login()
	if err != nil {
		return nil, err
	}
	request.SetBasicAuth(user, password)
	request.Header.Set("Content-Type", "application/json")
	return request, nil
}
