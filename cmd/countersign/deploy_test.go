package main

import (
	"bytes"
	"os"
	"testing"

	"go.yaml.in/yaml/v3"
)

// start unless it is told not to. The server refuses such a file.
func TestKubernetesLeavesTheKeyFileAlone(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../deploy/kubernetes.yaml")
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
