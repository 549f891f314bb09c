package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"countersign/internal/servicetest"
)

// toolServerVariable makes this test binary an MCP server. Its value is a file in which the server
// notes the calls that it carries out.
const toolServerVariable = "TEST_TOOL_SERVER"

func init() {
	if path := os.Getenv(toolServerVariable); path != "" {
		if err := newToolServer(path).Run(context.Background(), &mcp.StdioTransport{}); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
}

// toolInput are the arguments of every tool of the server.
type toolInput struct {
	Amount float64 `json:"amount_usd,omitempty"`
	Text   string  `json:"text,omitempty"`
}

// newToolServer returns a server that notes in a file which calls it carries out.
func newToolServer(path string) *mcp.Server {
	server := mcp.NewServer(&mcp.Implementation{Name: "test-tools", Version: "1.0"}, nil)
	for name, body := range map[string]func(context.Context, toolInput) (string, error){
		"echo": func(_ context.Context, in toolInput) (string, error) { return in.Text, nil },
		"pay":  func(_ context.Context, in toolInput) (string, error) { return fmt.Sprint("paid ", in.Amount), nil },
		"fail": func(context.Context, toolInput) (string, error) { return "", fmt.Errorf("a secret text") },
		"environment": func(context.Context, toolInput) (string, error) {
			return strings.Join(slices.DeleteFunc(os.Environ(), func(v string) bool { return !strings.HasPrefix(v, "COUNTERSIGN_") }), " "), nil
		},
		"hang": func(ctx context.Context, _ toolInput) (string, error) { <-ctx.Done(); return "", ctx.Err() },
	} {
		mcp.AddTool(server, &mcp.Tool{Name: name, Description: name}, func(ctx context.Context, _ *mcp.CallToolRequest, in toolInput) (*mcp.CallToolResult, any, error) {
			file, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
			if err != nil {
				return nil, nil, err
			}
			fmt.Fprintln(file, name)
			if err := file.Close(); err != nil {
				return nil, nil, err
			}
			text, err := body(ctx, in)
			if err != nil {
				return nil, nil, err
			}
			return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: text}}}, nil, nil
		})
	}
	return server
}

// testGateway is a running gateway with an MCP client in front of it and an MCP server behind it.
type testGateway struct {
	*mcp.ClientSession
	carried  string // the file of the server
	close    func() // ends the client
	log      servicetest.Buffer
	progress chan string
	ended    chan int
}

// onEachTransport runs a check for each way in which the parties of a gateway are connected.
func onEachTransport(t *testing.T, check func(t *testing.T, transport string)) {
	t.Helper()
	for _, transport := range []string{"stdio", "http"} {
		t.Run(transport, func(t *testing.T) {
			t.Parallel()
			check(t, transport)
		})
	}
}

// agentKey makes a key for an agent.
func (s *testStore) agentKey(t *testing.T) string {
	t.Helper()
	return strings.TrimSpace(succeed(t, s.args("keys", "create", "--org", "default", "--role", "agent", "--name", "bot")...))
}

// startGateway starts a gateway for a service.
//
//countersign:host it runs the program that the test talks to
func startGateway(t *testing.T, service *program, key, transport string, flags ...string) *testGateway {
	t.Helper()
	folder := t.TempDir()
	g := &testGateway{carried: filepath.Join(folder, "carried"), progress: make(chan string, 100), ended: make(chan int, 1)}
	writeFile(t, filepath.Join(folder, "key"), []byte(key))
	in, toGateway := io.Pipe()
	fromGateway, out := io.Pipe()
	args := []string{"gateway", "--url", service.address, "--key-file", filepath.Join(folder, "key"), "--agent", "clerk"}
	args = append(args, flags...)
	if transport == "stdio" {
		args = append(args, "--", "env", toolServerVariable+"="+g.carried, os.Args[0])
	} else {
		server := newToolServer(g.carried)
		web := httptest.NewServer(mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, nil))
		t.Cleanup(web.CloseClientConnections)
		args = append(args, "--upstream", web.URL+"/mcp", "--listen", "127.0.0.1:0")
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		defer out.Close()
		g.ended <- run(ctx, args, in, out, &g.log)
	}()
	var connection mcp.Transport = &mcp.IOTransport{Reader: fromGateway, Writer: toGateway}
	g.close = func() { _ = toGateway.Close() } // closing the session would wait for open calls
	if transport == "http" {
		address := regexp.MustCompile(`use (http://\S+)`)
		servicetest.Eventually(t, "the gateway listens", func() bool { return address.MatchString(g.log.String()) })
		connection = &mcp.StreamableClientTransport{Endpoint: address.FindStringSubmatch(g.log.String())[1]}
		g.close = cancel
	}
	client := mcp.NewClient(&mcp.Implementation{Name: "test-client", Version: "2.0"}, &mcp.ClientOptions{
		ProgressNotificationHandler: func(_ context.Context, n *mcp.ProgressNotificationClientRequest) { g.progress <- n.Params.Message },
	})
	var err error
	if g.ClientSession, err = client.Connect(t.Context(), connection, nil); err != nil {
		t.Fatalf("%v\n%s", err, g.log.String())
	}
	t.Cleanup(func() {
		cancel()
		g.end(t)
	})
	return g
}

// end closes the client's side, and waits for the gateway's end.
func (g *testGateway) end(t *testing.T) {
	t.Helper()
	g.close()
	select {
	case code := <-g.ended:
		g.ended <- code
		if code != 0 {
			t.Errorf("the gateway ended with status %d\n%s", code, g.log.String())
		}
	case <-time.After(deadline):
		t.Fatalf("the gateway does not end\n%s", g.log.String())
	}
}

// toolAnswer is the answer to a tool call.
type toolAnswer struct {
	text   string
	failed bool
	err    error
}

// beginCall calls a tool, and returns where its answer arrives.
func (g *testGateway) beginCall(ctx context.Context, tool string, in toolInput) <-chan toolAnswer {
	answered := make(chan toolAnswer, 1)
	go func() {
		params := &mcp.CallToolParams{Name: tool, Arguments: in}
		params.SetProgressToken("token of " + tool)
		result, err := g.CallTool(ctx, params)
		answer := toolAnswer{err: err}
		if err == nil {
			answer.failed = result.IsError
			for _, content := range result.Content {
				if c, ok := content.(*mcp.TextContent); ok {
					answer.text += c.Text
				}
			}
		}
		answered <- answer
	}()
	return answered
}

// callTool calls a tool, and returns its text and whether it is an error.
func (g *testGateway) callTool(t *testing.T, tool string, in toolInput) (text string, failed bool) {
	t.Helper()
	answer := <-g.beginCall(t.Context(), tool, in)
	if answer.err != nil {
		t.Fatalf("calling %s: %v\n%s", tool, answer.err, g.log.String())
	}
	return answer.text, answer.failed
}

// ran returns the tools that the server has carried out.
func (g *testGateway) ran(t *testing.T) []string {
	t.Helper()
	text, err := os.ReadFile(g.carried)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return strings.Fields(string(text))
}

// pendingApproval waits for an approval that is pending, and returns its id.
func pendingApproval(t *testing.T, reviewer *client) (id string) {
	t.Helper()
	servicetest.Eventually(t, "an approval is pending", func() bool {
		var list struct {
			Data []struct{ ID string }
		}
		reviewer.call(t, http.MethodGet, "/v1/approvals?status=pending", "", &list)
		if len(list.Data) > 0 {
			id = list.Data[0].ID
		}
		return len(list.Data) > 0
	})
	return id
}

// A server that knows nothing of Countersign is governed by the gateway: what is denied never reaches
// it, what needs approval waits, and the chain of the session ends with a receipt that has every
// outcome. The server does not get the gateway's key.
//
//countersign:race
func TestGateway(t *testing.T) {
	t.Parallel()
	onEachTransport(t, checkGateway)
}

func checkGateway(t *testing.T, transport string) {
	t.Helper()
	s := migratedSQLite(t)
	service := start(t, s.flags...)
	admin := service.admin(t)
	g := startGateway(t, service, s.agentKey(t), transport)
	tools, err := g.ListTools(t.Context(), nil)
	if err != nil || len(tools.Tools) != 5 {
		t.Fatalf("the tools are %+v (%v)", tools, err)
	}

	if text, failed := g.callTool(t, "echo", toolInput{Text: "hello"}); failed || text != "hello" {
		t.Errorf("echo answers %q", text)
	}
	if text, failed := g.callTool(t, "fail", toolInput{}); !failed || text != "a secret text" {
		t.Errorf("fail answers %q", text)
	}
	if text, failed := g.callTool(t, "environment", toolInput{}); failed || transport == "stdio" && text != "" {
		t.Errorf("the server knows %s", text)
	}
	admin.call(t, http.MethodPost, "/v1/kill-switch/activate", `{"reason":"drill"}`, &struct{}{})
	if text, failed := g.callTool(t, "echo", toolInput{}); !failed || !strings.Contains(text, "the kill switch is active: drill") {
		t.Errorf("a stopped call is answered %q", text)
	}
	admin.call(t, http.MethodPost, "/v1/kill-switch/deactivate", "", &struct{}{})

	for _, decision := range []string{"approve", "deny"} {
		answered := g.beginCall(t.Context(), "pay", toolInput{Amount: 6200})
		id := pendingApproval(t, admin)
		if text := <-g.progress; !strings.Contains(text, service.address+"/approvals/"+id) {
			t.Errorf("the progress says %q", text)
		}
		admin.call(t, http.MethodPost, "/v1/approvals/"+id+"/"+decision, `{"comment":"said so"}`, &struct{}{})
		got := <-answered
		if approved := decision == "approve"; got.failed == approved || approved && got.text != "paid 6200" || !approved && !strings.Contains(got.text, "said so") {
			t.Errorf("%s: the call is answered %+v", decision, got)
		}
	}
	if ran := g.ran(t); !slices.Equal(ran, []string{"echo", "fail", "environment", "pay"}) {
		t.Errorf("the server has carried out %v", ran)
	}

	g.end(t)
	chain, outcomes := recordedBy(t, admin)
	if chain.Name != "test-tools" || chain.Status != "completed" || chain.Metadata["mcp_client"] != "test-client 2.0" {
		t.Errorf("the chain is %+v", chain)
	}
	want := []string{"clerk echo succeeded", "clerk fail failed", "clerk environment succeeded", "clerk echo none", "clerk pay succeeded", "clerk pay none"}
	if !slices.Equal(outcomes, want) {
		t.Errorf("recorded is %q, want %q", outcomes, want)
	}
	if log := g.log.String(); strings.Contains(log, "a secret text") || keyPattern.MatchString(log) || !strings.Contains(log, "receipt CSN-") {
		t.Errorf("the log says\n%s", log)
	}
}

// recordedChain is the chain of a session.
type recordedChain struct {
	ID, Name, Status string
	Metadata         map[string]string
}

// recordedBy returns the only chain, and the agents, actions and outcomes of its events.
func recordedBy(t *testing.T, admin *client) (recordedChain, []string) {
	t.Helper()
	var chains struct{ Data []recordedChain }
	admin.call(t, http.MethodGet, "/v1/chains", "", &chains)
	if len(chains.Data) != 1 {
		t.Fatalf("the chains are %+v", chains.Data)
	}
	var events struct {
		Data []struct {
			AgentName  string `json:"agent_name"`
			ActionName string `json:"action_name"`
			Outcome    *struct{ Outcome string }
		}
	}
	admin.call(t, http.MethodGet, "/v1/chains/"+chains.Data[0].ID+"/events", "", &events)
	var outcomes []string
	for _, event := range events.Data {
		said := "none"
		if event.Outcome != nil {
			said = event.Outcome.Outcome
		}
		outcomes = append(outcomes, event.AgentName+" "+event.ActionName+" "+said)
	}
	return chains.Data[0], outcomes
}

// A call that its client gives up while it waits is not carried out, and nobody has to decide it any
// more. What the session leaves open is recorded as unknown.
//
//countersign:race
func TestGatewayCallsThatAreGivenUp(t *testing.T) {
	t.Parallel()
	onEachTransport(t, checkGivenUpCalls)
}

func checkGivenUpCalls(t *testing.T, transport string) {
	t.Helper()
	s := migratedSQLite(t)
	service := start(t, s.flags...)
	admin := service.admin(t)
	g := startGateway(t, service, s.agentKey(t), transport)
	ctx, cancel := context.WithCancel(t.Context())
	given := g.beginCall(ctx, "pay", toolInput{Amount: 6200})
	id := pendingApproval(t, admin)
	cancel()
	<-given
	servicetest.Eventually(t, "the approval is cancelled", func() bool {
		var approval struct{ Status string }
		admin.call(t, http.MethodGet, "/v1/approvals/"+id, "", &approval)
		return approval.Status == "cancelled"
	})
	hanging := g.beginCall(t.Context(), "hang", toolInput{})
	servicetest.Eventually(t, "the tool runs", func() bool { return slices.Contains(g.ran(t), "hang") })
	g.end(t)
	<-hanging
	if ran := g.ran(t); !slices.Equal(ran, []string{"hang"}) {
		t.Errorf("the server has carried out %v", ran)
	}
	chain, outcomes := recordedBy(t, admin)
	if want := []string{"clerk pay none", "clerk hang unknown"}; chain.Status != "completed" || !slices.Equal(outcomes, want) {
		t.Errorf("recorded is %q in the chain %+v\n%s", outcomes, chain, g.log.String())
	}
}

// While the service cannot be reached, no tool is carried out. Everything else works.
//
//countersign:race
func TestGatewayWithoutTheService(t *testing.T) {
	t.Parallel()
	const transport = "stdio"
	s := migratedSQLite(t)
	service := start(t, s.flags...)
	g := startGateway(t, service, s.agentKey(t), transport)
	service.stop(t)
	if text, failed := g.callTool(t, "echo", toolInput{}); !failed || !strings.Contains(text, "cannot be reached") {
		t.Errorf("the call is answered %q", text)
	}
	if _, err := g.ListTools(t.Context(), nil); err != nil {
		t.Error(err)
	}
	if ran := g.ran(t); len(ran) != 0 {
		t.Errorf("the server has carried out %v", ran)
	}
}

// With a limit to waiting, a call that needs approval is answered while it is undecided. Repeating it
// carries it out once it is approved, and only once.
//
//countersign:race
func TestGatewayPostponesCalls(t *testing.T) {
	t.Parallel()
	s := migratedSQLite(t)
	service := start(t, s.flags...)
	admin := service.admin(t)
	g := startGateway(t, service, s.agentKey(t), "stdio", "--wait", "50ms")
	for range 2 {
		if text, failed := g.callTool(t, "pay", toolInput{Amount: 6200}); !failed || !strings.Contains(text, "a person must approve it first") {
			t.Errorf("the call is answered %q", text)
		}
	}
	id := pendingApproval(t, admin)
	if text, failed := g.callTool(t, "pay", toolInput{Amount: 6300}); !failed || !strings.Contains(text, "a person must approve it first") {
		t.Errorf("another call is answered %q", text)
	}
	admin.call(t, http.MethodPost, "/v1/approvals/"+id+"/approve", "", &struct{}{})
	if text, failed := g.callTool(t, "pay", toolInput{Amount: 6200}); failed || text != "paid 6200" {
		t.Errorf("the approved call is answered %q", text)
	}
	if text, failed := g.callTool(t, "pay", toolInput{Amount: 6200}); !failed || !strings.Contains(text, "a person must approve it first") {
		t.Errorf("the same call once more is answered %q", text)
	}
	g.end(t)
	chain, outcomes := recordedBy(t, admin)
	if want := []string{"clerk pay succeeded", "clerk pay none", "clerk pay none"}; chain.Status != "completed" || !slices.Equal(outcomes, want) {
		t.Errorf("recorded is %q in the chain %+v", outcomes, chain)
	}
}
