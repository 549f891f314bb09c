package gateway

import (
	"encoding/json"
	"strings"
	"sync"
	"unicode"
)

// parties are the client and the server of a session, as far as they have said who they are: when they
// shook hands or, since the protocol of 2026-07-28, with any message. It is safe for concurrent use.
type parties struct {
	mu             sync.Mutex
	client, server party
}

// party is how a client or a server calls itself.
type party struct {
	Name    string `json:"name"`
	Version string `json:"version"`
}

// introduction is the part of a message that says who sent it.
type introduction struct {
	Client party `json:"clientInfo"`
	Server party `json:"serverInfo"`
	Meta   struct {
		Client party `json:"io.modelcontextprotocol/clientInfo"`
		Server party `json:"io.modelcontextprotocol/serverInfo"`
	} `json:"_meta"`
}

// noteClient reads a message of the client, unless its name is known.
func (p *parties) noteClient(m *message) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.client.Name == "" {
		p.client = clientOf(m)
	}
}

// clientOf is who a message of a client says that it is from.
func clientOf(m *message) party {
	params, ok := m.value.Get("params")
	if !ok {
		return party{}
	}
	var told introduction
	_ = json.Unmarshal(params.Bytes(), &told) // what was not told stays empty
	return told.Client.or(told.Meta.Client)
}

// noteServer reads a message of the server, unless its name is known.
func (p *parties) noteServer(r *response) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.server.Name != "" || r.Result == nil {
		return
	}
	var told introduction
	_ = json.Unmarshal(r.Result, &told)
	p.server = told.Server.or(told.Meta.Server)
}

func (p *parties) names() (client, server party) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.client, p.server
}

func (p party) or(other party) party {
	if p.Name == "" {
		p = other
	}
	return party{label(p.Name), label(p.Version)}
}

// maxLabel bounds the names of parties, in characters.
const maxLabel = 100

// label makes a name of one short line, as the service takes it.
func label(text string) string {
	text = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return -1
		}
		return r
	}, clean(text))
	if runes := []rune(text); len(runes) > maxLabel {
		text = string(runes[:maxLabel])
	}
	return strings.TrimSpace(text)
}
