package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"countersign/internal/canon"
	"countersign/internal/ledger"
	"countersign/internal/service"
)

// request is what the flags ask for.
func (c *keysCreateCommand) request(now ledger.Time) (*service.KeyRequest, error) {
	expires, err := parseExpiry(c.Expires, now)
	if err != nil {
		return nil, misused(err)
	}
	asked := map[string]any{"role": c.Role, "agents": c.Agent, "expires_at": timeText(expires)}
	if c.Owner != "" {
		asked["owner"] = c.Owner
	}
	body, err := json.Marshal(asked)
	if err != nil {
		return nil, err
	}
	value, err := canon.Parse(body)
	if err != nil {
		return nil, err
	}
	request, err := service.ParseKeyRequest(value)
	if err != nil {
		return nil, flagFault(err)
	}
	request.Name = c.Name
	return request, nil
}

// flagFault says in the command line's words which flag is at fault.
func flagFault(err error) error {
	var own *ledger.Error
	if !errors.As(err, &own) || len(own.Fields) == 0 {
		return err
	}
	field := own.Fields[0]
	name, _, _ := strings.Cut(strings.TrimPrefix(field.Pointer, "/"), "/")
	flag := map[string]string{"agents": "--agent", "expires_at": "--expires", "owner": "--owner", "overlap_seconds": "--overlap"}[name]
	return misused(fmt.Errorf("%s %s", cmp.Or(flag, name), field.Detail))
}

// parseExpiry reads a moment, or a span from now; "" is none.
func parseExpiry(text string, now ledger.Time) (*ledger.Time, error) {
	if text == "" {
		return nil, nil
	}
	if at, err := ledger.ParseTime(text); err == nil {
		return &at, nil
	}
	span, err := parseSpan(text)
	if err != nil || span <= 0 {
		return nil, fmt.Errorf("--expires %q is neither a time such as 2030-01-31T00:00:00Z nor a span such as 90d or 12h", text)
	}
	at := now + ledger.Time(span.Milliseconds())
	return &at, nil
}

// parseSpan reads a duration as Go writes it, or a number of days such as 90d.
func parseSpan(text string) (time.Duration, error) {
	const day, most = 24 * time.Hour, 36500
	count, isDays := strings.CutSuffix(text, "d")
	if !isDays {
		return time.ParseDuration(text)
	}
	days, err := strconv.Atoi(count)
	if err != nil || days < 0 || days > most {
		return 0, fmt.Errorf("%q is not a number of days from 0 to %d", count, most)
	}
	return time.Duration(days) * day, nil
}
