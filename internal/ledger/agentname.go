package ledger

import "encoding/json"

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
