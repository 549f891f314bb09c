package main

import (
	"sync"

	"countersign/internal/httpapi"
)

// fileFaults are the problems with the files next to the database. The watch sets them
// and the readiness check reads them. The texts contain paths, so only the log shows
// them.
type fileFaults struct {
	mu                  sync.Mutex
	keys, heads, chains string // "" for no problem; guarded by mu
}

// note sets one of the faults to err and reports whether it is a new problem.
func (f *fileFaults) note(which *string, err error) (isNew bool) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	isNew = text != "" && text != *which
	*which = text
	return isNew
}

func (f *fileFaults) known(which *string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return *which != ""
}

// report returns the faults without paths, for the public readiness check.
func (f *fileFaults) report() []httpapi.Fault {
	f.mu.Lock()
	defer f.mu.Unlock()
	faults := []httpapi.Fault{{Check: "key file", Reason: "key_file"}, {Check: "file of heads", Reason: "heads_not_written"}}
	if f.keys != "" {
		faults[0].Detail = "the key file is missing, unreadable or not valid: this server keeps using the keys in memory, and no other can start; restore the file, see countersign doctor"
	}
	switch {
	case f.heads != "":
		faults[1].Detail = "the heads file cannot be read or written, so a restored older database would not be noticed: see the log and countersign doctor"
	case f.chains != "":
		faults[1].Detail = "the journal of open chains next to the heads file cannot be written, so a chain that is rolled back would not be noticed after a restart: see the log"
	}
	return faults
}
