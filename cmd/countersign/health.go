package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

type healthCommand struct {
	URL     string        `name:"url" help:"Where the server is reached." default:"http://127.0.0.1:8080" env:"COUNTERSIGN_URL"`
	Timeout time.Duration `help:"How long to wait for the answer." default:"5s" env:"-"`
	JSON    bool          `name:"json" help:"Print the server's answer as it is." env:"-"`
}

// readiness is what /readyz answers.
type readiness struct {
	Status string `json:"status"`
	Checks []struct {
		Name   string `json:"name"`
		Status string `json:"status"`
		Detail string `json:"detail"`
	} `json:"checks"`
}

// Run asks a server whether it is ready. Containers have nothing else to ask with.
func (c *healthCommand) Run(p *process) error {
	base, err := parseBase("--url", c.URL)
	if err != nil {
		return misused(err)
	}
	ctx, cancel := context.WithTimeout(p.ctx, c.Timeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, base+"/readyz", http.NoBody)
	if err != nil {
		return unclear(err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return &exitError{exitFailed, fmt.Errorf("the server at %s cannot be reached: %w", base, withoutURL(err))}
	}
	defer response.Body.Close()
	data, err := io.ReadAll(io.LimitReader(response.Body, 1<<20))
	if err != nil {
		return err
	}
	var found readiness
	if err := json.Unmarshal(data, &found); err != nil || found.Status == "" {
		return fmt.Errorf("the server at %s answered %s, and not as countersign does: is --url right?", base, response.Status)
	}
	if c.JSON {
		fmt.Fprintf(p.out, "%s\n", strings.TrimSpace(string(data)))
	} else {
		found.print(p.out)
	}
	if response.StatusCode != http.StatusOK {
		return &exitError{code: exitFailed}
	}
	return nil
}

func (r *readiness) print(w io.Writer) {
	fmt.Fprintln(w, r.Status)
	for _, check := range r.Checks {
		if check.Status != findingOK {
			fmt.Fprintf(w, "%s %s: %s\n", check.Status, check.Name, check.Detail)
		}
	}
}
