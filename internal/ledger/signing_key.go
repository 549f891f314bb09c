package ledger

// The statuses of a signing key.
const (
	SigningActive     = "active"
	SigningRetired    = "retired"
	SigningRevoked    = "revoked"
	SigningHistorical = "historical" // imported: it signed before there was a registry
)
