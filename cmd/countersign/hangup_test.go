package main

import (
	"context"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"countersign/internal/servicetest"
)

// SIGHUP while a server starts, as a reload right after a start sends it, does not end the server.
//
//countersign:race
func TestHangupWhileAServerStarts(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	pipe, key := filepath.Join(folder, "certificate.pem"), filepath.Join(folder, "key.pem")
	writeFile(t, key, nil)
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	server := exec.Command(os.Args[0], "serve", "--listen", "127.0.0.1:0", "--data", filepath.Join(folder, "data"), "--tls-cert", pipe, "--tls-key", key)
	if _, err := server.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	var said servicetest.Buffer
	server.Env, server.Stderr = crashEnvironment(), &said
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	certificate, err := os.OpenFile(pipe, os.O_WRONLY, 0) // returns once the server reads it
	if err != nil {
		t.Fatal(err)
	}
	if err := server.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	<-time.After(100 * time.Millisecond) // a signal that ends the server arrives before the certificate
	_ = certificate.Close()              // which is empty, so the start fails
	if err := server.Wait(); err == nil || !strings.Contains(said.String(), "TLS certificate") {
		t.Errorf("the server ends with %v and says %s", err, said.String())
	}
}

// A reload that ends because the server stops is not reported as a fault of the file.
//
//countersign:race
func TestReloadWhileAServerStops(t *testing.T) {
	t.Parallel()
	var said servicetest.Buffer
	stopping, stop := context.WithCancel(t.Context())
	reloaded := &watchedFile{name: "signing keys", fault: new(string), reload: func(ctx context.Context) error {
		stop()
		return ctx.Err()
	}}
	reloaded.check(stopping, &server{log: slog.New(slog.NewTextHandler(&said, nil))}, true)
	if said.String() != "" || *reloaded.fault != "" {
		t.Errorf("the log says %q, the fault is %q", said.String(), *reloaded.fault)
	}
}
