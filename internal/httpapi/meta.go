package httpapi

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"countersign/api"
	"countersign/internal/ledger"
)

func health(x *exchange) error {
	return x.answer(http.StatusOK, []byte(`{"status":"ok"}`))
}

type readiness struct {
	Status string           `json:"status"`
	Checks []readinessCheck `json:"checks"`
}

type readinessCheck struct {
	Name   string `json:"name"`
	Status string `json:"status"`
	Detail string `json:"detail,omitempty"`
}

func ready(x *exchange) error {
	ctx, cancel := context.WithTimeout(x.r.Context(), 2*time.Second)
	defer cancel()
	status, answer := http.StatusOK, readiness{Status: "ready", Checks: []readinessCheck{{Name: "storage", Status: "ok"}, x.policyCheck(ctx)}}
	if err := x.api.service.Ready(ctx); err != nil {
		status, answer.Status = http.StatusServiceUnavailable, "unavailable"
		answer.Checks[0] = readinessCheck{Name: "storage", Status: "failed", Detail: "the store does not answer"}
		x.api.log.Error("not ready", "request_id", x.id, "error", err)
	}
	body, err := json.Marshal(answer)
	if err != nil {
		return err
	}
	return x.answer(status, body)
}

// policyCheck says how many organizations nobody has written policies for. It
// keeps no request from being served.
func (x *exchange) policyCheck(ctx context.Context) readinessCheck {
	organizations, err := x.api.service.Operator().Organizations(ctx)
	if err != nil {
		return readinessCheck{Name: "policy", Status: "warning", Detail: "not known: the store does not answer"}
	}
	alone := 0
	for _, org := range organizations {
		if org.Controls.Policy.Number == 0 {
			alone++
		}
	}
	return readinessCheck{
		Name: "policy", Status: "ok",
		Detail: fmt.Sprintf("%d of %d organizations are under the built-in defaults alone", alone, len(organizations)),
	}
}

func openAPIJSON(x *exchange) error {
	document, err := api.JSON()
	if err != nil {
		return err
	}
	x.cacheable()
	return x.answer(http.StatusOK, document)
}

func openAPIYAML(x *exchange) error {
	x.cacheable()
	x.write(http.StatusOK, "application/yaml", api.YAML)
	return nil
}

func docsPage(x *exchange) error { return x.docs(api.DocsPath) }

func docsAsset(x *exchange) error { return x.docs(api.DocsPath + "/" + x.r.PathValue("asset")) }

func (x *exchange) docs(path string) error {
	for _, file := range api.DocsFiles() {
		if file.Path == path {
			x.cacheable()
			x.w.Header().Set("Content-Security-Policy", api.DocsPolicy)
			x.write(http.StatusOK, file.ContentType, file.Body)
			return nil
		}
	}
	return ledger.ErrNotFound
}

// cacheable marks what is the same for everyone until the next version.
func (x *exchange) cacheable() { x.w.Header().Set("Cache-Control", "public, max-age=300") }
