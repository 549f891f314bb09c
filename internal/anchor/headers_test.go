package anchor_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"countersign/internal/anchor"
)

const otherHost = "http://other.example"

var blockHash = strings.Repeat("0a", 32) // any value works; only the header counts

// startNode implements the required part of Bitcoin Core's JSON-RPC.
func startNode(t *testing.T, user, password string) string {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(writer http.ResponseWriter, request *http.Request) {
		if name, given, _ := request.BasicAuth(); name != user || given != password {
			writer.WriteHeader(http.StatusUnauthorized)
			return
		}
		var call struct {
			Method string
			Params []any
		}
		if err := json.NewDecoder(request.Body).Decode(&call); err != nil {
			t.Error(err)
		}
		switch asked := fmt.Sprint(call.Method, call.Params); asked {
		case fmt.Sprint("getblockhash", []any{realHeight}):
			_, _ = io.WriteString(writer, `{"result":"`+blockHash+`","error":null,"id":"countersign"}`)
		case fmt.Sprint("getblockheader", []any{blockHash, false}):
			_, _ = io.WriteString(writer, `{"result":"`+hexHeader+`","error":null,"id":"countersign"}`)
		default:
			writer.WriteHeader(http.StatusInternalServerError)
			_, _ = io.WriteString(writer, `{"result":null,"error":{"code":-8,"message":"Block height out of range"}}`)
		}
	}))
	t.Cleanup(server.Close)
	return server.URL
}

// startExplorer serves an Esplora-style interface below /api.
func startExplorer(t *testing.T) string {
	t.Helper()
	routes := http.NewServeMux()
	routes.HandleFunc(fmt.Sprintf("GET /api/block-height/%d", realHeight), reply(blockHash+"\n"))
	routes.HandleFunc("GET /api/block/"+blockHash+"/header", reply(hexHeader))
	server := httptest.NewServer(routes)
	t.Cleanup(server.Close)
	return server.URL + "/api"
}

func answering(t *testing.T, handler http.HandlerFunc) string {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	return server.URL
}

func fileOf(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// Block headers are read from a node, an explorer or a file, and errors contain no credentials.
func TestHeaderSources(t *testing.T) {
	t.Parallel()
	const login = "reader:hush"
	node := startNode(t, "reader", "hush")
	inNode := func(userinfo string) string { return "rpc+" + strings.Replace(node, "http://", "http://"+userinfo, 1) }
	inFile := func(text string) string { return "file:" + fileOf(t, text) }
	withCookie := func(path string) string { return "rpc+" + node + "?cookie=" + url.QueryEscape(path) }
	line := fmt.Sprintf("%d %s\n", realHeight, hexHeader)
	redirect := http.RedirectHandler(otherHost, http.StatusFound).ServeHTTP
	tests := map[string]struct {
		source string
		height int
		want   anchor.Reason
	}{
		"node":                        {inNode(login + "@"), realHeight, ""},
		"node with a cookie":          {withCookie(fileOf(t, login+"\n")), realHeight, ""},
		"node, block unknown":         {inNode(login + "@"), 1, anchor.Unavailable},
		"node, another password":      {inNode("reader:hush2@"), realHeight, anchor.Refused},
		"node, no cookie":             {withCookie(fileOf(t, "") + "hush"), realHeight, anchor.Unavailable},
		"node, an odd cookie":         {withCookie(fileOf(t, "hush")), realHeight, anchor.Unavailable},
		"node, no JSON":               {"rpc+" + strings.Replace(answering(t, reply("hello")), "//", "//reader:hush@", 1), realHeight, anchor.Malformed},
		"node, no hash":               {"rpc+" + strings.Replace(answering(t, reply(`{"result":"../x"}`)), "//", "//reader:hush@", 1), realHeight, anchor.Malformed},
		"node, endless":               {"rpc+" + strings.Replace(answering(t, reply(strings.Repeat(" ", 5000))), "//", "//reader:hush@", 1), realHeight, anchor.Malformed},
		"node, redirects":             {"rpc+" + strings.Replace(answering(t, redirect), "//", "//reader:hush@", 1), realHeight, anchor.Unavailable},
		"explorer":                    {"esplora+" + startExplorer(t), realHeight, ""},
		"explorer, block unknown":     {"esplora+" + startExplorer(t), 1, anchor.Unavailable},
		"explorer, no hash":           {"esplora+" + answering(t, reply("../../hush")), realHeight, anchor.Malformed},
		"explorer, hash for a header": {"esplora+" + answering(t, reply(blockHash)), realHeight, anchor.Malformed},
		"explorer, forbidden":         {"esplora+" + answering(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) }) + "/hush", realHeight, anchor.Refused},
		"explorer, redirects":         {"esplora+" + answering(t, redirect) + "?key=hush", realHeight, anchor.Unavailable},
		"file":                        {inFile("# blocks\n\n1 00\n  " + line), realHeight, ""},
		"file with slashes":           {strings.Replace(inFile(line), "file:", "file://", 1), realHeight, ""},
		"file without the block":      {inFile(line), 1, anchor.Unavailable},
		"file with a short header":    {inFile("1 00\n"), 1, anchor.Malformed},
		"file with an odd line":       {inFile("block 1\n" + line), realHeight, anchor.Malformed},
		"file with a negative line":   {inFile("-1 00\n" + line), realHeight, anchor.Malformed},
		"file with a long line":       {inFile(strings.Repeat("x", 5000)), realHeight, anchor.Unavailable},
		"no file":                     {inFile(line) + "hush", realHeight, anchor.Unavailable},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			source, err := anchor.ParseHeaderSource(test.source)
			if err != nil {
				t.Fatal(err)
			}
			header, err := source.Header(t.Context(), test.height)
			if got := anchor.ReasonOf(err); got != test.want || (err == nil) != (test.want == "") {
				t.Fatalf("got %v, want %q", err, test.want)
			}
			if err == nil && fmt.Sprintf("%x", header) != hexHeader {
				t.Errorf("got the header %x", header)
			}
			if shown := fmt.Sprintf("%v %+v %v", err, source, source); strings.Contains(shown, "hush") && !strings.HasPrefix(test.source, "file:") {
				t.Errorf("the source gives a secret away: %s", shown)
			}
		})
	}
}

// An invalid header source is refused, and the error contains no credentials.
func TestParseHeaderSource(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"nothing":             "",
		"an address alone":    "https://hush.example",
		"another kind":        "electrum+https://hush.example",
		"another scheme":      "esplora+ftp://hush.example",
		"no host":             "esplora+https:///hush",
		"no path":             "file:",
		"no login":            "rpc+http://127.0.0.1:8332",
		"two logins":          "rpc+http://user:hush@127.0.0.1:8332?cookie=hush",
		"not an address":      "rpc+http://user:hush@127.0.0.1:port",
		"a kind without more": "rpc",
	} {
		if source, err := anchor.ParseHeaderSource(text); err == nil || strings.Contains(err.Error(), "hush") {
			t.Errorf("%s: got %v, %v, want a refusal that gives nothing away", name, source, err)
		}
	}
}
