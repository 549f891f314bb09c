package main

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// gatewayVariable makes this test binary the program itself, which has its standard input for itself.
const gatewayVariable = "TEST_GATEWAY"

func init() {
	if os.Getenv(gatewayVariable) != "" {
		main()
	}
}

// A client that is killed closes everything that the gateway writes to. The gateway still waits for the
// answer of the server, reports the outcome and completes the chain.
//
//countersign:race
func TestGatewayWhoseClientIsKilled(t *testing.T) {
	t.Parallel()
	s := migratedSQLite(t)
	service := start(t, s.flags...)
	key := s.agentKey(t)
	const server = `read call; echo '{"jsonrpc":"2.0","method":"begun"}'; sleep 1
		echo '{"jsonrpc":"2.0","method":"lost"}'; echo '{"jsonrpc":"2.0","id":1,"result":{}}'`
	gateway := exec.Command(os.Args[0], "gateway", "--url", service.address, "--agent", "clerk", "--", "sh", "-c", server)
	gateway.Env = append(os.Environ(), gatewayVariable+"=yes", "COUNTERSIGN_API_KEY="+key)
	in, out, log := pipesOf(t, gateway)
	if err := gateway.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(in, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo"}}`+"\n"); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || !strings.Contains(line, "begun") {
		t.Fatalf("the client got %q (%v)", line, err)
	}
	for _, pipe := range []io.Closer{in, out, log} {
		if err := pipe.Close(); err != nil {
			t.Fatal(err)
		}
	}
	// It fails, because the client did not get all of its output.
	if err := gateway.Wait(); !gateway.ProcessState.Exited() {
		t.Errorf("the gateway ended with %v", err)
	}
	chain, outcomes := recordedBy(t, service.admin(t))
	if want := []string{"clerk echo succeeded"}; chain.Status != "completed" || !slices.Equal(outcomes, want) {
		t.Errorf("recorded is %q in the chain %+v", outcomes, chain)
	}
}

// pipesOf connects a command with the test.
func pipesOf(t *testing.T, command *exec.Cmd) (in io.WriteCloser, out, log io.ReadCloser) {
	t.Helper()
	var errs [3]error
	in, errs[0] = command.StdinPipe()
	out, errs[1] = command.StdoutPipe()
	log, errs[2] = command.StderrPipe()
	for _, err := range errs {
		if err != nil {
			t.Fatal(err)
		}
	}
	return in, out, log
}
