package doctor

import (
	"context"

	"countersign/internal/sso"
)

// singleSignOn reads the discovery document of the identity provider as a server does.
func (e *examination) singleSignOn(ctx context.Context) finding {
	config, err := e.sso.SSOConfig()
	switch {
	case err != nil:
		return failed("%v", err)
	case config == nil:
		return skipped("--oidc-issuer is not given")
	}
	config.Callback = config.Issuer // nobody is sent anywhere
	client, err := sso.New(*config)
	if err != nil {
		return failed("%v", err)
	}
	if err := client.Check(ctx); err != nil {
		return failed("the identity provider %s cannot be used, so people need sign-in links: %v", config.Issuer, err)
	}
	return ok("%s answers, and its discovery document names it", config.Issuer)
}
