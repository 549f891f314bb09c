package classify

import (
	"slices"
	"strings"

	"countersign/internal/canon"
)

// SafeVerbs are the words that the name of an obviously safe action can start with. The order is
// part of every granted lease, so new words go to the end.
var SafeVerbs = []string{"get", "list", "read", "search", "find", "look", "lookup", "view", "show", "describe", "count"}

// unsafeWords are verbs of writing, sending, paying and running that are rarely anything else after
// a verb of looking: get_order and read_email contain a noun.
var unsafeWords = wordSet(`abort accept activate add alter append apply approve assign attach authorize ban bash bid boot broadcast browse
	bulk buy call cancel change charge clear cmd configure confirm copy crawl create deactivate debit delete deliver demote deploy deposit destroy
	detach dial disable disburse discard dispatch donate drop edit eject empty enable encrypt enqueue erase eval exec execute expire export fire
	flush forward format freeze fund generate grant hire impersonate import increment init initialize inject insert install invalidate invoke
	kill launch lock migrate modify mount move mutate mv notify overwrite patch pause pay persist populate powershell promote provision prune
	publish purchase purge push put reassign reboot rebuild redeem refund register reimburse reject remit remove rename renew replace reply
	reset resize restart restore revert revoke rm rollback rotate run save scale scrape sell send set settle shell shutdown shut sign spawn spend
	sql ssh start stop store submit subscribe sudo suspend swap sync terminate toggle trade transfer transmit trigger truncate tweet undo
	uninstall unlock unset unsubscribe update upgrade upload upsert wipe wire withdraw write`)

// connectives join a second verb.
var connectives = wordSet(`and or then`)

// ObviouslySafe reports whether an action is beyond doubt: its name starts with an allowed word,
// which must be one of SafeVerbs, no other word of it is a verb of writing, sending, paying or
// running, classification found nothing, and nothing in it is opaque: redacted, cut or nested too
// deeply.
func ObviouslySafe(actionName string, allowed []string, facts Facts, opaque bool) bool {
	return !opaque && facts.empty() && nameIsSafe(actionName, allowed)
}

func (f *Facts) empty() bool {
	return len(f.Categories) == 0 && f.Amount == nil && !f.AmountUnusable && len(f.ExternalDomains) == 0 && f.RecordsModified == 0 &&
		f.Model == "" && f.InputTokens == 0 && f.OutputTokens == 0 && !f.Code && !f.Unseen
}

// nameIsSafe accepts only ASCII names: a verb of another language, or a letter that only looks like
// an ASCII one, cannot be judged.
func nameIsSafe(s string, allowed []string) bool {
	if !isASCII(s) {
		return false
	}
	var buffer [64]byte
	first := true
	for start, end := nextWord(s, 0); start < len(s); start, end = nextWord(s, end) {
		word := string(appendLower(buffer[:0], s[start:end]))
		if first && (!slices.Contains(allowed, word) || !slices.Contains(SafeVerbs, word)) {
			return false
		}
		if !first && (unsafeWords[word] || connectives[word]) {
			return false
		}
		first = false
	}
	return !first // a name without words is not safe
}

// marks replace or follow what clients and the service remove from a payload.
var marks = [...]string{Redacted, "[CYCLE]", "[TOO DEEP]", "[OMITTED]", "...[truncated]"}

// Opaque reports whether something was removed from a value: redacted, cut, or omitted because it
// was too deep or too large.
func Opaque(v canon.Value) bool {
	switch v.Kind() {
	case canon.String:
		return isMarked(v.Str())
	case canon.Array:
		return slices.ContainsFunc(v.Items(), Opaque)
	case canon.Object:
		return slices.ContainsFunc(v.Members(), func(m canon.Member) bool { return isMarked(m.Name) || Opaque(m.Value) })
	default:
		return false
	}
}

func isMarked(text string) bool {
	for _, mark := range marks {
		if strings.Contains(text, mark) {
			return true
		}
	}
	return false
}

// statements are the first words of statements that change data.
var statements = wordSet(`alter call create delete drop exec execute grant insert merge replace revoke set truncate update upsert`)

// queries are the first words of other statements.
var queries = wordSet(`begin explain select with`)

// beginsStatement looks for a statement that changes data. Its words mean nothing in prose: they
// must start the text or be part of a statement.
func beginsStatement(text string) bool {
	var buffer [64]byte
	first, inside := true, strings.IndexByte(text, ';') >= 0
	for start, end := nextWord(text, 0); start < len(text); start, end = nextWord(text, end) {
		word := appendLower(buffer[:0], text[start:end])
		if (first || inside) && statements[string(word)] {
			return true
		}
		inside = inside || first && queries[string(word)]
		if !inside {
			return false
		}
		first = false
	}
	return false
}
