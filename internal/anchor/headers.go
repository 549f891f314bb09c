package anchor

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
)

const maxHeaderAnswer = 4 << 10

// ParseHeaderSource returns the source that a configuration names. It uses neither the network nor
// a file:
//
//	rpc+http://USER:PASSWORD@HOST:PORT      Bitcoin Core
//	rpc+http://HOST:PORT?cookie=FILE        Bitcoin Core, with its cookie file
//	esplora+https://HOST/PATH               an Esplora-style HTTP interface
//	file:PATH                               lines of a height and a header in hexadecimal
//
// Its errors do not contain the text, which may include a password.
func ParseHeaderSource(text string) (HeaderSource, error) {
	if path, ok := strings.CutPrefix(text, "file:"); ok {
		path = strings.TrimPrefix(path, "//")
		if path == "" {
			return nil, errors.New("bitcoin headers: file: needs a path behind it")
		}
		return headerFile{path}, nil
	}
	kind, rest, ok := strings.Cut(text, "+")
	if !ok || (kind != "rpc" && kind != "esplora") {
		return nil, errors.New("bitcoin headers: give rpc+http://…, esplora+https://… or file:PATH")
	}
	address, err := parseAddress(rest)
	if err != nil {
		return nil, fmt.Errorf("bitcoin headers: %w", err)
	}
	if kind == "rpc" {
		return newBitcoinCore(address)
	}
	return &esplora{address: address, client: newClient(0)}, nil
}

// decodeHeader decodes a header in hexadecimal.
func decodeHeader(source, text string) ([80]byte, error) {
	data, err := hex.DecodeString(strings.TrimSpace(text))
	if err != nil || len(data) != headerSize {
		return [80]byte{}, faultf(Malformed, "%s gave no block header of %d bytes", source, headerSize)
	}
	return [80]byte(data), nil
}

// decodeBlockHash checks a block's hash, which becomes part of the next request.
func decodeBlockHash(source, text string) (string, error) {
	text = strings.TrimSpace(text)
	if data, err := hex.DecodeString(text); err != nil || len(data) != 32 {
		return "", faultf(Malformed, "%s gave no block hash", source)
	}
	return text, nil
}

// esplora is the HTTP interface of block explorers.
type esplora struct {
	address *url.URL
	client  *http.Client
}

func (e *esplora) Header(ctx context.Context, height int) ([80]byte, error) {
	found, err := e.get(ctx, "block-height", fmt.Sprint(height))
	if err != nil {
		return [80]byte{}, err
	}
	hash, err := decodeBlockHash(e.address.Host, found)
	if err != nil {
		return [80]byte{}, err
	}
	text, err := e.get(ctx, "block", hash, "header")
	if err != nil {
		return [80]byte{}, err
	}
	return decodeHeader(e.address.Host, text)
}

func (e *esplora) get(ctx context.Context, path ...string) (string, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, e.address.JoinPath(path...).String(), http.NoBody)
	if err != nil {
		return "", faultf(Malformed, "ask %s: %w", e.address.Host, withoutAddress(err))
	}
	found, err := send(e.client, request, maxHeaderAnswer)
	switch {
	case err != nil:
		return "", err
	case found.status == http.StatusNotFound:
		return "", faultf(Unavailable, "%s does not know the block yet", e.address.Host)
	case found.status != http.StatusOK:
		return "", statusFault(e.address.Host, found.status)
	}
	return string(found.body), nil
}
