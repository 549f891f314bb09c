package doctor

import (
	"context"
	"fmt"
	"strings"

	"countersign/internal/cli"
	"countersign/internal/service"
)

// slack asks Slack whether it accepts the token and knows the channels that organizations have set. It
// sends nothing that anybody sees.
func (e *examination) slack(ctx context.Context) finding {
	app, err := e.slackApp.Slack()
	if err != nil {
		return failed("%v", err)
	}
	if e.storage.CheckExists() != nil {
		return e.skipMissing()
	}
	o, err := e.storage.OpenForReading(e.process)
	if err != nil {
		return skipped("the store cannot be opened with its keys")
	}
	defer o.Close()
	channels, err := o.Operator().SlackChannels(ctx)
	if err != nil {
		return failed("%v", err)
	}
	if app == nil {
		if len(channels) > 0 {
			return warning("a Slack channel is set in %s, but this command was given no Slack app: give it and the server --slack-token-file and --slack-signing-secret-file, or nothing is sent there", cli.Count(len(channels), "organization"))
		}
		return skipped("--slack-token-file is not given")
	}
	defer app.Close()
	who, err := app.Check(ctx)
	if err != nil {
		return failed("approvals do not appear in Slack: %v", err)
	}
	if len(channels) == 0 {
		return warning("Slack accepts the token of %s in %s, but no organization has set a channel: an admin sets it in the console under Settings, or as slack_channel with PATCH /v1/organization", who.User, who.Team)
	}
	var unknown []string
	for _, in := range channels[:min(len(channels), maxSlackChannels)] {
		if err := app.CheckChannel(ctx, in.Channel); err != nil {
			unknown = append(unknown, fmt.Sprintf("%s (%s): %v", cli.Quoted(in.Slug, cli.MaxSlug), in.Channel, err))
		}
	}
	if len(unknown) > 0 {
		return failed("approvals of these organizations do not appear in Slack: %s", strings.Join(unknown, "; "))
	}
	return ok("Slack accepts the token of %s in %s, and knows %s", who.User, who.Team, checkedChannels(channels))
}

// maxSlackChannels bounds how many channels are asked for.
const maxSlackChannels = 20

func checkedChannels(channels []service.SlackChannel) string {
	if len(channels) > maxSlackChannels {
		return fmt.Sprintf("the channels of %d organizations; %d more were not checked", maxSlackChannels, len(channels)-maxSlackChannels)
	}
	return "the channels of " + cli.Count(len(channels), "organization")
}
