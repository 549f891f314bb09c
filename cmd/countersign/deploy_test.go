package main

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"go.yaml.in/yaml/v3"
)

const manifest = "../../deploy/kubernetes.yaml"

// The kubelet opens every file of a volume to the group at each start unless it is told not to. The
// server refuses such a key file.
func TestKubernetesLeavesTheKeyFileAlone(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(manifest)
	if err != nil {
		t.Fatal(err)
	}
	for decoder := yaml.NewDecoder(bytes.NewReader(text)); ; {
		var document struct {
			Kind string
			Spec struct {
				Template struct {
					Spec struct {
						SecurityContext map[string]any `yaml:"securityContext"`
					}
				}
			}
		}
		if err := decoder.Decode(&document); err != nil {
			t.Fatalf("there is no StatefulSet: %v", err)
		}
		if document.Kind != "StatefulSet" {
			continue
		}
		if context := document.Spec.Template.Spec.SecurityContext; context["fsGroup"] != nil && context["fsGroupChangePolicy"] != "OnRootMismatch" {
			t.Errorf("the security context is %v", context)
		}
		return
	}
}

// Whoever changes the chart makes the manifest anew, and nobody changes the manifest alone. The
// manifest names a sum of both, because this test has no Helm.
func TestKubernetesManifestIsMadeFromTheChart(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(manifest)
	if err != nil {
		t.Fatal(err)
	}
	parts := regexp.MustCompile(`(?s)\n# sum: ([0-9a-f]{64})\n(.*)$`).FindSubmatch(text)
	if parts == nil {
		t.Fatal("the manifest names no sum")
	}
	sum := sha256.New()
	if err := filepath.WalkDir("../../deploy/chart", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		file, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		name, err := filepath.Rel("../../deploy", path)
		fmt.Fprintf(sum, "%x  %s\n", sha256.Sum256(file), filepath.ToSlash(name))
		return err
	}); err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(sum, "%x  -\n", sha256.Sum256(parts[2]))
	if fmt.Sprintf("%x", sum.Sum(nil)) != string(parts[1]) {
		t.Error("deploy/kubernetes.yaml is not what deploy/chart renders: run scripts/manifest")
	}
}
