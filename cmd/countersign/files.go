package main

import (
	"sync"

	"countersign/internal/httpapi"
)

// fileFaults is what is wrong with the files beside the database, by the watch that
// looks at them, for the readiness. The texts name paths: only the log shows them.
type fileFaults struct {
	mu                  sync.Mutex
	keys, heads, chains string // "" where nothing is wrong
}

// note keeps what is wrong, "" for nothing, and reports whether that is new.
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

// report is what anyone may know.
func (f *fileFaults) report() []httpapi.FileFault {
	f.mu.Lock()
	defer f.mu.Unlock()
	faults := []httpapi.FileFault{{Check: "key file", Reason: "key_file"}, {Check: "file of heads", Reason: "heads_not_written"}}
	if f.keys != "" {
		faults[0].Detail = "the key file is missing, unreadable or not valid: this server goes on with the keys that it has read, and no other starts; put the file back, see countersign doctor"
	}
	switch {
	case f.heads != "":
		faults[1].Detail = "the file of heads cannot be read or written, so that a database that is put back would not be noticed: see the log and countersign doctor"
	case f.chains != "":
		faults[1].Detail = "the journal of open chains beside the file of heads cannot be written, so that a chain that is put back would not be noticed after a restart: see the log"
	}
	return faults
}
