package witness

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"path"
	"slices"
	"strings"

	"golang.org/x/mod/sumdb/tlog"
)

// Alarm is something that is wrong with a log.
type Alarm struct {
	Origin string
	Kind   string
}

// The kinds of alarms.
const (
	// AlarmFork: the log has signed two histories. It stands until a person removes
	// the proof from the folder and starts the witness again.
	AlarmFork = "fork"
	// AlarmRollback: the log publishes a smaller tree than before.
	AlarmRollback = "rollback"
	// AlarmSilence: no checkpoint could be fetched and checked for too long.
	AlarmSilence = "silence"
	// AlarmIdle: the log answers and does not grow.
	AlarmIdle = "idle"
)

var alarmKinds = []string{AlarmFork, AlarmRollback, AlarmSilence, AlarmIdle}

// CountAlarms is how many logs have an alarm of each kind.
func (w *Witness) CountAlarms() map[string]int {
	counts := make(map[string]int, len(alarmKinds))
	for _, kind := range alarmKinds {
		counts[kind] = 0
	}
	for _, alarm := range w.Alarms() {
		counts[alarm.Kind]++
	}
	return counts
}

// Alarms are what is wrong now, in no order.
func (w *Witness) Alarms() []Alarm {
	w.mu.Lock()
	defer w.mu.Unlock()
	alarms := make([]Alarm, 0, len(w.alarms))
	for alarm := range w.alarms {
		alarms = append(alarms, alarm)
	}
	return alarms
}

var alarmTexts = map[string]string{
	AlarmFork:     "a log has signed two histories: the proof is in the folder forks",
	AlarmRollback: "a log publishes a smaller tree than before",
	AlarmSilence:  "a log has published no checkpoint that could be fetched and checked for too long",
	AlarmIdle:     "a log does not grow",
}

// raise sets an alarm, and says so the first time.
func (w *Witness) raise(name, kind string) {
	w.mu.Lock()
	known := w.alarms[Alarm{name, kind}]
	w.alarms[Alarm{name, kind}] = true
	w.mu.Unlock()
	if !known {
		w.log.Error(alarmTexts[kind], "alarm", kind, "log", w.number(name), "origin", name)
	}
}

// number is a log's place in the list, by which people find it: an origin may look
// like an id, which the log of this process masks. It is 0 for an address of which
// nothing was read yet.
func (w *Witness) number(name string) int {
	if o := w.origins[name]; o != nil {
		return o.number
	}
	return 0
}

// clear ends an alarm.
func (w *Witness) clear(name, kind string) {
	w.mu.Lock()
	known := w.alarms[Alarm{name, kind}]
	delete(w.alarms, Alarm{name, kind})
	w.mu.Unlock()
	if known {
		w.log.Info("an alarm has ended", "alarm", kind, "log", w.number(name), "origin", name)
	}
}

// maxForks bounds how many proofs of a log's forks are kept: one would do.
const maxForks = 8

// reportFork keeps two checkpoints, both signed by the log, that cannot both be of
// one history. Between trees of two sizes the proof shows it: its hashes lead from
// the smaller tree to the larger root, and not to the smaller root.
func (w *Witness) reportFork(last *head, signed *checkpoint, proof tlog.TreeProof) {
	w.raise(signed.Origin, AlarmFork)
	name := fmt.Sprintf("%s-%d-%d", originHash(signed.Origin), last.Size, signed.Size)
	kept, err := forkFiles(w.files, signed.Origin)
	if err == nil && len(kept) < maxForks && !slices.Contains(kept, name) {
		err = replace(w.files, path.Join(forkFolder, name), forkProof(last, signed, proof))
	}
	if err != nil {
		w.log.Error("the proof of a fork could not be kept", "error", err)
	}
}

func forkProof(last *head, signed *checkpoint, proof tlog.TreeProof) []byte {
	var text bytes.Buffer
	text.WriteString("Two checkpoints of one log that no one history can have.\n\nCosigned before:\n\n" + last.Note + "\nSeen later:\n\n" + signed.note.Text + "\n")
	for _, sig := range signed.note.Sigs {
		text.WriteString(signatureLine(sig))
	}
	if len(proof) > 0 {
		text.WriteString("\nThe consistency proof, from the smaller to the larger tree, that the log's own tiles make:\n\n")
	}
	for _, hash := range proof {
		text.WriteString(base64.StdEncoding.EncodeToString(hash[:]) + "\n")
	}
	return text.Bytes()
}

// forkFiles lists the proofs that are kept of a log's forks.
func forkFiles(files fileSystem, name string) (kept []string, err error) {
	names, err := files.list(forkFolder)
	for _, file := range names {
		if strings.HasPrefix(file, originHash(name)+"-") && !strings.HasSuffix(file, ".new") {
			kept = append(kept, file)
		}
	}
	return kept, err
}

// recallForks raises the alarms of the forks that were found before.
func (w *Witness) recallForks() error {
	for name := range w.origins {
		kept, err := forkFiles(w.files, name)
		if err != nil {
			return err
		}
		if len(kept) > 0 {
			w.raise(name, AlarmFork)
		}
	}
	return nil
}
