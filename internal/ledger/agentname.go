package ledger

import (
	"encoding/json"
	"strings"
	"unicode"

	"golang.org/x/text/cases"
	"golang.org/x/text/unicode/norm"
)

// foldAgentName is the form in which two spellings of an agent's name are the
// same: NFKC, without regard to case, without characters that show nothing.
func foldAgentName(name string) string {
	plain := norm.NFKC.String(strings.Map(dropInvisible, name))
	// Fold turns the two cases of Cherokee letters into each other; in lower case
	// they are the same. And folding can leave what NFKC would compose.
	folded := strings.ToLower(cases.Fold().String(plain))
	return strings.Map(dropInvisible, norm.NFKC.String(folded))
}

func dropInvisible(r rune) rune {
	if unicode.In(r, unicode.Cf, unicode.Cc, unicode.Other_Default_Ignorable_Code_Point, unicode.Variation_Selector) {
		return -1
	}
	return r
}

// EncodeAgents writes a list of agents' names as stores keep it.
func EncodeAgents(names []string) []byte {
	if len(names) == 0 {
		return []byte("[]")
	}
	encoded, err := json.Marshal(names)
	if err != nil {
		panic(err) // a list of strings always has a form
	}
	return encoded
}

// DecodeAgents reads what EncodeAgents wrote; nil for an empty list.
func DecodeAgents(encoded []byte) ([]string, error) {
	var names []string
	if err := json.Unmarshal(encoded, &names); err != nil || len(names) == 0 {
		return nil, err
	}
	return names, nil
}
