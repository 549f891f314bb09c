package ledger

// Role is what an API key may do. Each role may do what the ones before it may.
type Role string

// The roles, weakest first.
const (
	RoleAgent  Role = "agent"
	RoleMember Role = "member"
	RoleAdmin  Role = "admin"
)

// ParseRole reads a role's name.
func ParseRole(text string) (Role, bool) {
	role := Role(text)
	return role, role.rank() > 0
}

// Includes reports whether the role may do what the other may.
func (r Role) Includes(other Role) bool {
	return other.rank() > 0 && r.rank() >= other.rank()
}

func (r Role) rank() int {
	switch r {
	case RoleAgent:
		return 1
	case RoleMember:
		return 2
	case RoleAdmin:
		return 3
	default:
		return 0
	}
}
