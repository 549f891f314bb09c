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
	}
}
