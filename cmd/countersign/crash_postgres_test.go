package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/url"
	"os"
	"testing"

	"github.com/jackc/pgx/v5"
)

// newCrashDatabase makes an empty database that lives as long as the test.
func newCrashDatabase(t *testing.T) string {
	t.Helper()
	server := os.Getenv("COUNTERSIGN_TEST_POSTGRES")
	if server == "" {
		t.Fatal("COUNTERSIGN_TEST_POSTGRES names no PostgreSQL server: run the tests with make test or make test-go")
	}
	address, err := url.Parse(server)
	if err != nil {
		t.Fatal("COUNTERSIGN_TEST_POSTGRES is no URL")
	}
	name := fmt.Sprintf("crash_%016x", rand.Uint64())
	execOnPostgres(t, server, "create database "+name)
	t.Cleanup(func() { execOnPostgres(t, server, "drop database "+name+" with (force)") })
	address.Path = "/" + name
	return address.String()
}

func execOnPostgres(t *testing.T, server, statement string) {
	t.Helper()
	ctx := context.Background() // the test's own has ended when it cleans up
	conn, err := pgx.Connect(ctx, server)
	if err != nil {
		t.Fatalf("connect to PostgreSQL: %v", err)
	}
	defer conn.Close(ctx)
	if _, err := conn.Exec(ctx, statement); err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
}
