package classify

import "strings"

// role is what a key of the payload means.
type role uint8

const (
	roleNone role = iota
	// The keys of an amount, the one that is believed first on top.
	roleAmountUSD
	roleAmount
	roleTotalUSD
	roleTotal
	rolePriceUSD
	rolePrice
	roleCurrency
	// roleHost is a key whose value is a host or an address even without a scheme.
	roleHost
	// roleCount is a number of records, or the list of them.
	roleCount
	// roleIDs is a list of records' ids.
	roleIDs

	amountRoles = int(rolePrice)
)

// isDollars reports whether a key's name says which currency it is in.
func (r role) isDollars() bool {
	return r == roleAmountUSD || r == roleTotalUSD || r == rolePriceUSD
}

// isPlain reports whether the key can also be about something else than money: a
// total of pages, a price that is only shown.
func (r role) isPlain() bool { return r == roleTotal || r == rolePrice }

func roleOf(key string) role {
	if isNormal(key) {
		return roleOfNormal(key)
	}
	var buffer [64]byte
	return roleOfNormal(string(appendNormal(buffer[:0], key)))
}

// isNormal recognises most keys that need no other spelling.
func isNormal(key string) bool {
	for i := range len(key) {
		if b := key[i]; (b < 'a' || b > 'z') && (b != '_' || i == 0 || key[i-1] == '_') {
			return false
		}
	}
	return !strings.HasSuffix(key, "_")
}

func roleOfNormal(key string) role {
	switch key {
	case "amount_usd":
		return roleAmountUSD
	case "amount":
		return roleAmount
	case "total_usd":
		return roleTotalUSD
	case "total":
		return roleTotal
	case "price_usd":
		return rolePriceUSD
	case "price":
		return rolePrice
	case "currency", "currency_code":
		return roleCurrency
	case "affected_records", "affected_rows", "modified_records", "modified_rows", "num_records", "num_rows", "record_count",
		"records", "records_affected", "records_count", "records_modified", "row_count", "rows", "rows_affected", "rows_count",
		"rows_modified":
		return roleCount
	case "domain_name", "host_name":
		return roleHost
	}
	return roleOfLastWord(key[strings.LastIndexByte(key, '_')+1:])
}

func roleOfLastWord(word string) role {
	switch word {
	case "domain", "domains", "endpoint", "endpoints", "host", "hostname", "hostnames", "hosts", "uri", "uris", "url", "urls",
		"webhook", "webhooks", "website", "websites":
		return roleHost
	case "ids":
		return roleIDs
	default:
		return roleNone
	}
}
