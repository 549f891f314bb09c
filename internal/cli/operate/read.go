package operate

import (
	"errors"
	"fmt"

	"countersign/internal/cli"
	"countersign/internal/fault"
	"countersign/internal/ledger"
)

// couldNotRead marks an error of reading the store as inconclusive.
func couldNotRead(err error) error {
	if misnamed(err) {
		return cli.Inconclusive(err)
	}
	return cli.Inconclusive(fmt.Errorf("could not read: %w", err))
}

// namesNothing marks an error about a name on the command line as inconclusive.
func namesNothing(err error) error {
	if misnamed(err) {
		return cli.Inconclusive(err)
	}
	return err
}

// misnamed reports whether a name on the command line matches nothing, or several things.
func misnamed(err error) bool {
	var own *fault.Error
	return errors.As(err, &own) && (own.Code == fault.CodeNotFound || own.Code == fault.CodeInvalid)
}

func noOrganization(name string) error {
	return fmt.Errorf("there is no organization %q; countersign orgs list lists the existing ones", name)
}

// readSlugs returns the slugs of all organizations.
func readSlugs(p *cli.Process, o *cli.Opened) (map[ledger.OrgID]string, error) {
	orgs, err := o.Operator().Organizations(p.Ctx)
	if err != nil {
		return nil, couldNotRead(err)
	}
	slugs := make(map[ledger.OrgID]string, len(orgs))
	for _, org := range orgs {
		slugs[org.ID] = org.Slug
	}
	return slugs, nil
}
