package ledger

import "testing"

// An admin may do what a member may, and a member what an agent may. An unknown role
// may do nothing.
func TestRolesIncludeTheWeaker(t *testing.T) {
	t.Parallel()
	roles := []Role{RoleAgent, RoleMember, RoleAdmin}
	for i, role := range roles {
		for j, other := range roles {
			if got := role.Includes(other); got != (i >= j) {
				t.Errorf("%s includes %s: %t", role, other, got)
			}
		}
		if role.Includes("") || Role("").Includes(role) || role.Includes("owner") || Role("owner").Includes(role) {
			t.Errorf("an unknown role is held against %s", role)
		}
		if parsed, ok := ParseRole(string(role)); !ok || parsed != role {
			t.Errorf("ParseRole(%s) = %s, %t", role, parsed, ok)
		}
	}
	for _, text := range []string{"", "Admin", "owner", "admin "} {
		if _, ok := ParseRole(text); ok {
			t.Errorf("%q passes for a role", text)
		}
	}
}
