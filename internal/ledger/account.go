package ledger

// KeyRecord is an API key as the service knows it: never its text, only a hash.
type KeyRecord struct {
	ID        KeyID
	Org       OrgID
	Name      string
	Role      Role
	Hash      [32]byte
	Hint      string // prefix and last characters, for people to recognise it by
	CreatedAt Time
	RevokedAt *Time
}

// Active reports whether the key still opens anything.
func (k *KeyRecord) Active() bool { return k.RevokedAt == nil }
