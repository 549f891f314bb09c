package service_test

import (
	"fmt"
	"strings"
)

// bendOrganizations changes the settings and controls of organizations in the database.
func (s *scene) bendOrganizations() {
	s.t.Helper()
	for _, slug := range tamperedOrgs {
		org := s.ofOrg("organizations", slug)[0]
		settings, controls := text(org.value("settings")), text(org.value("controls"))
		bend := func(name, column string, value any) {
			s.t.Helper()
			s.try(crime{
				name: name + " of " + slug, org: slug, checks: checksFor("organizations"), tables: []string{"organizations"},
				commit: func(s *scene) error { return s.update("organizations SET "+column+" = ? WHERE slug = ?", value, slug) },
			})
		}
		within := func(document, old, with string) string {
			s.t.Helper()
			if !strings.Contains(document, old) {
				s.t.Fatalf("%s is not in %s", old, document)
			}
			return strings.Replace(document, old, with, 1)
		}
		bend("name", "name", "Somebody else")
		bend("moment of creation", "created_at", org.value("created_at").(int64)+1)
		bend("threshold", "settings", within(settings, `_usd":5000,`, `_usd":5000000,`))
		bend("mode", "settings", within(settings, `"enforce"`, `"shadow"`))
		bend("limit of events", "settings", within(settings, `"max_events":5`, `"max_events":500`))
		bend("settings gone back to the defaults", "settings", "{}")
		bend("kill switch thrown", "controls", within(controls, `"active":false`, `"active":true`))
		bend("who lifted the kill switch", "controls", within(controls, `"first admin"`, `"someone"`))
		bend("policy taken out of force", "controls", within(controls, `"number":2`, `"number":0`))
		bend("older policy put in force", "controls", within(controls, `"number":2`, `"number":1`))
		bend("webhooks kept in the dark", "controls", within(controls, `"webhooks":1`, `"webhooks":0`))
		bend("controls emptied", "controls", nil)
	}
}

// text converts a driver's text or bytes to a string.
func text(value any) string {
	if bytes, ok := value.([]byte); ok {
		return string(bytes)
	}
	return fmt.Sprint(value)
}
