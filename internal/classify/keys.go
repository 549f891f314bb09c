package classify

import "strings"

// role is what a key of the payload means.
type role uint8

const (
	roleNone role = iota
	// roleDollars is an amount in US dollars by its name.
	roleDollars
	// roleAmount is always about money.
	roleAmount
	// rolePlain can also be about something else: a total of pages, a price that is only shown.
	rolePlain
	// roleValue is about money only in an action whose name is financial.
	roleValue
	// roleCurrency names the currency of the amounts next to and below it.
	roleCurrency
	// roleUnit is like roleCurrency if it has a text, but can also be about something else.
	roleUnit
	// roleHost is a key whose value is a host or an address even without a scheme.
	roleHost
	// roleLink is a key whose value may be a host or the name of a page.
	roleLink
	// roleTarget is a key whose value may be a host, a file or a person.
	roleTarget
	// roleCount is a number of records or a list of them.
	roleCount
	// roleIDs is a list of record ids.
	roleIDs
	// roleModel names a language model.
	roleModel
	// roleInput and roleOutput are counts of tokens.
	roleInput
	roleOutput
	// roleCode is a program or a statement.
	roleCode
	// roleQuery is a search or a statement.
	roleQuery
	// roleUsage is an object with token counts, as returned by providers.
	roleUsage
)

func (r role) isAmount() bool { return roleDollars <= r && r <= roleValue }

// isExplicit reports whether a key is always about money.
func (r role) isExplicit() bool { return r == roleDollars || r == roleAmount }

func roleOf(key string) role { return roleOfNormal(normalName(key)) }

// normalName returns the spelling under which names are looked up.
func normalName(key string) string {
	if isNormal(key) {
		return key
	}
	var buffer [64]byte
	return string(appendNormal(buffer[:0], key))
}

// isNormal recognizes most keys that are already in the normal spelling.
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
	case "amount_usd", "total_usd", "price_usd":
		return roleDollars
	case "amount":
		return roleAmount
	case "total", "price":
		return rolePlain
	case "value":
		return roleValue
	case "asset", "denom", "denomination", "unit":
		return roleUnit
	case "model":
		return roleModel
	case "input_tokens", "input_token_count", "prompt_tokens", "prompt_token_count":
		return roleInput
	case "output_tokens", "output_token_count", "completion_tokens", "completion_token_count", "candidates_token_count":
		return roleOutput
	case "usage", "usage_metadata", "token_usage":
		return roleUsage
	case "affected_records", "affected_rows", "modified_records", "modified_rows", "num_records", "num_rows", "record_count",
		"records", "records_affected", "records_count", "records_modified", "row_count", "rows", "rows_affected", "rows_count",
		"rows_modified":
		return roleCount
	case "domain_name", "host_name":
		return roleHost
	}
	if isCurrencyKey(key) {
		return roleCurrency
	}
	return roleOfLastWord(key[strings.LastIndexByte(key, '_')+1:])
}

// isCurrencyKey finds currency and ccy as a word of a key: currency_code, currencyIso,
// payout_currency.
func isCurrencyKey(key string) bool {
	if !strings.Contains(key, "cy") {
		return false
	}
	for word := range strings.SplitSeq(key, "_") {
		if word == "currency" || word == "ccy" {
			return true
		}
	}
	return false
}

func roleOfLastWord(word string) role {
	switch word {
	case "domain", "domains", "endpoint", "endpoints", "host", "hostname", "hostnames", "hosts", "uri", "uris", "url", "urls",
		"webhook", "webhooks", "website", "websites":
		return roleHost
	case "href", "hrefs", "homepage", "link", "links", "proxy", "redirect", "server", "servers", "site", "sites":
		return roleLink
	case "bcc", "callback", "cc", "dest", "destination", "dst", "recipient", "recipients", "src", "target", "targets", "to":
		return roleTarget
	case "ids":
		return roleIDs
	case "bash", "cmd", "command", "commands", "script", "shell", "sql":
		return roleCode
	case "q", "query", "statement":
		return roleQuery
	default:
		return roleNone
	}
}
