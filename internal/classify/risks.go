package classify

import "regexp"

// Risks are what an action's name says that people want to know about, whatever the rules are: it
// runs a shell, deletes something, or sends mail.
type Risks struct {
	Shell    bool
	Deletion bool
	Mail     bool
}

// shellWords name a shell or a way to run commands in one.
var shellWords = wordSet(`bash cmd command exec powershell sh shell ssh subprocess sudo terminal zsh`)

// deletionWords are only verbs: get_deleted_items deletes nothing.
var deletionWords = wordSet(`delete destroy drop erase purge remove rm truncate wipe`)

// mailWords are mostly nouns: read_email sends nothing.
var mailWords = wordSet(`email emails gmail mail mails newsletter newsletters smtp`)

// NameRisks considers the whole words of an action's name. An action whose name is obviously safe
// has no risks, so that a client that decides such actions itself decides like the service.
func NameRisks(actionName string) (r Risks) {
	var buffer [64]byte
	for start, end := nextWord(actionName, 0); start < len(actionName); start, end = nextWord(actionName, end) {
		word := appendLower(buffer[:0], actionName[start:end])
		r.Shell = r.Shell || shellWords[string(word)]
		r.Deletion = r.Deletion || deletionWords[string(word)]
		r.Mail = r.Mail || mailWords[string(word)]
	}
	if r == (Risks{}) || nameIsSafe(actionName, SafeVerbs) {
		return Risks{}
	}
	if r.Mail {
		r.Mail = !readName(actionName).reading
	}
	return r
}

// writingSQL matches a statement that changes a database, at the start of a text or after another
// statement. It requires two words, because "update the plan" is prose. Every first word is one of
// statements, so a client also recognizes it as a statement.
var writingSQL = regexp.MustCompile(`(?i)(?:^|;)\s*(?:` +
	`insert\s+into|delete\s+from|merge\s+into|replace\s+into|truncate\s+table|update\s+\S+\s+set|` +
	`(?:create|alter|drop)\s+(?:or\s+replace\s+|temp\s+|temporary\s+|unique\s+|materialized\s+)*` +
	`(?:table|view|index|schema|database|function|procedure|trigger|sequence|type|user|role)|` +
	`(?:grant|revoke)\s+[\w\s,()]+\s+(?:on|to|from)` +
	`)\s`)

// writesSQL reports whether a text is a statement that changes a database.
func writesSQL(text string) bool { return writingSQL.MatchString(text) }
