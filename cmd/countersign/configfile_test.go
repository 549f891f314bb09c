package main

import (
	"path/filepath"
	"testing"

	"countersign/internal/cli"
)

// have the same name take other values.
func TestVerifyWithTheServersConfiguration(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	config, file := filepath.Join(folder, "config.yaml"), filepath.Join(folder, "a.bundle")
	writeFile(t, config, []byte("witness: ['w+11111111+AYGweqEpMd1oJY21ZNN/H54wCA6lDEp7+KUeTqeVpKIz=https://w.example']\nbitcoin-headers: 'esplora+https://b.example'\n"))
	writeFile(t, file, []byte("{}"))
	refuse(t, cli.ExitInconclusive, "the file is no bundle", "verify", file, "--config", config)
}
