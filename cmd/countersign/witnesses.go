package main

import (
	"errors"
	"fmt"

	"countersign/internal/httpapi"
	"countersign/internal/witness"
)

// maxWitnesses bounds the number of cosignatures on a checkpoint.
const maxWitnesses = 16

// parseWitnesses reads --witness. It reaches no network.
func parseWitnesses(texts []string) ([]*witness.Client, error) {
	if len(texts) > maxWitnesses {
		return nil, fmt.Errorf("--witness: at most %d witnesses", maxWitnesses)
	}
	var clients []*witness.Client
	known := make(map[string]bool)
	for _, text := range texts {
		target, err := witness.ParseTarget(text)
		if err != nil {
			return nil, fmt.Errorf("--witness: %w", err)
		}
		if known[target.VKey] {
			return nil, errors.New("--witness: the key of " + target.Name + " is given twice: each witness counts once")
		}
		known[target.VKey] = true
		clients = append(clients, witness.NewClient(target))
	}
	return clients, nil
}

// faults returns the faults of the files next to the database and of the witnesses, for
// the readiness check.
func (s *server) faults() []httpapi.Fault {
	faults := s.files.report()
	if len(s.witnesses) == 0 {
		return faults
	}
	fault := httpapi.Fault{Check: "witnesses", Reason: "witness_disagrees", Count: s.worker.WitnessDisagreements()}
	if fault.Count > 0 {
		fault.Detail = fmt.Sprintf("a witness has cosigned another history of %d transparency logs: the database was restored or changed, or the witness is wrong; see the log", fault.Count)
	}
	return append(faults, fault)
}
