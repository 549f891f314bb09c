package ledger

// The statuses of a signing key.
const (
	SigningActive     = "active"
	SigningRetired    = "retired"
	SigningRevoked    = "revoked"
	SigningHistorical = "historical" // imported: it signed elsewhere, or before there was a registry
	SigningConfirmed  = "confirmed"  // historical, and an admin has said that it is what it claims to be
)
