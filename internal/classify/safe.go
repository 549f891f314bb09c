package classify

import "slices"

// SafeVerbs are the first words of actions that only look at something. A client
// may be allowed to decide such actions by itself. The order is part of every
// lease that was granted: new words go to the end.
var SafeVerbs = []string{"get", "list", "read", "search", "find", "look", "lookup", "view", "show", "describe", "count"}

// ObviouslySafe reports whether an action begins with one of the allowed verbs and
// nothing else was found in it.
func ObviouslySafe(actionName string, facts *Facts, allowed []string) bool {
	if len(facts.Categories) > 0 || len(facts.ExternalDomains) > 0 || facts.Amount != nil || facts.RecordsModified != 0 ||
		facts.Model != "" || facts.InputTokens != 0 || facts.OutputTokens != 0 {
		return false
	}
	start, end := nextWord(actionName, 0)
	var buffer [64]byte
	return slices.Contains(allowed, string(appendLower(buffer[:0], actionName[start:end])))
}
