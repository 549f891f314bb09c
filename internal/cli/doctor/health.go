package doctor

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"countersign/internal/cli"
)

// HealthCommand is the health command.
type HealthCommand struct {
	URL     string        `name:"url" help:"URL of the server." default:"http://127.0.0.1:8080" env:"COUNTERSIGN_URL"`
	Timeout time.Duration `help:"How long to wait for the response." default:"5s" env:"-"`
	JSON    bool          `name:"json" help:"Print the server's response unchanged." env:"-"`
}

// readiness is the response of /readyz.
type readiness struct {
	Status string `json:"status"`
	Checks []struct {
		Name   string `json:"name"`
		Status string `json:"status"`
		Detail string `json:"detail"`
	} `json:"checks"`
}

// Run asks a server whether it is ready. It is for containers without another HTTP client.
func (c *HealthCommand) Run(p *cli.Process) error {
	base, err := cli.ParseBaseURL("--url", c.URL)
	if err != nil {
		return cli.Usage(err)
	}
	ctx, cancel := context.WithTimeout(p.Ctx, c.Timeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, base+"/readyz", http.NoBody)
	if err != nil {
		return cli.Inconclusive(err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return fmt.Errorf("the server at %s cannot be reached: %w", base, cli.WithoutURL(err))
	}
	defer response.Body.Close()
	data, err := cli.ReadAnswer(response, 1<<20)
	if err != nil {
		return fmt.Errorf("the answer of the server at %s is incomplete or too long: %w", base, err)
	}
	var found readiness
	if err := json.Unmarshal(data, &found); err != nil || found.Status == "" {
		return fmt.Errorf("the server at %s answered %s, but not like a countersign server: check --url", base, response.Status)
	}
	if c.JSON {
		fmt.Fprintf(p.Out, "%s\n", strings.TrimSpace(string(data)))
	} else {
		found.print(p.Out)
	}
	if response.StatusCode != http.StatusOK {
		return &cli.ExitError{Code: cli.ExitFailed}
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
