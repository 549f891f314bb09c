package operate

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"countersign/internal/canon"
	"countersign/internal/cli"
	"countersign/internal/fault"
	"countersign/internal/ledger"
	"countersign/internal/service"
)

// request builds the request from the flags.
func (c *keysCreateCommand) request(now ledger.Time) (*service.KeyRequest, error) {
	expires, err := cli.ParseExpiry(c.Expires, now)
	if err != nil {
		return nil, cli.Usage(err)
	}
	fields := map[string]any{"role": c.Role, "agents": c.Agent, "expires_at": cli.TimeText(expires)}
	if c.Owner != "" {
		fields["owner"] = c.Owner
	}
	if c.SignInAs != "" {
		fields["sign_in_as"] = c.SignInAs
	}
	if c.SlackMember != "" {
		fields["slack_member"] = c.SlackMember
	}
	body, err := json.Marshal(fields)
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

// flagFault names the flag that is at fault.
func flagFault(err error) error {
	var own *fault.Error
	if !errors.As(err, &own) || len(own.Fields) == 0 {
		return err
	}
	field := own.Fields[0]
	name, _, _ := strings.Cut(strings.TrimPrefix(field.Pointer, "/"), "/")
	flag := map[string]string{"agents": "--agent", "expires_at": "--expires", "owner": "--owner", "sign_in_as": "--sign-in-as", "slack_member": "--slack-member", "overlap_seconds": "--overlap"}[name]
	return cli.Usage(fmt.Errorf("%s %s", cmp.Or(flag, name), field.Detail))
}
