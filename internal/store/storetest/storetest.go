// Package storetest is the conformance suite of the storage port: every promise
// written in package store, as a case that an implementation passes or fails.
//
// Each case has a database of its own. Where its records are real, made by package
// ledger with keys, the whole ledger is verified again after the case.
package storetest

import (
	"slices"
	"testing"

	"countersign/internal/store"
)

// Opener opens one more handle on the same database, independent of the others
// as another process's would be. The handle is closed when the test ends.
type Opener func(t *testing.T) store.Store

// Exemption excuses a store from a part of the promise that it does not keep.
type Exemption string

// SignalsStayInHandle is for a store that one process serves: its signals are
// heard by those who watch through the same handle.
const SignalsStayInHandle Exemption = "signals stay in the handle"

// Run holds a store to the port's promise, as far as one caller can see it.
// Create makes a database that is empty and migrated, removes it when the test
// ends, and returns its opener.
func Run(t *testing.T, create func(t *testing.T) Opener) {
	t.Helper()
	runCases(t, create, false, nil)
}

// RunConcurrent holds a store to what it promises to callers that work at once.
// Its cases start goroutines: run it under the race detector.
func RunConcurrent(t *testing.T, create func(t *testing.T) Opener, exemptions ...Exemption) {
	t.Helper()
	runCases(t, create, true, exemptions)
}

func runCases(t *testing.T, create func(t *testing.T) Opener, concurrent bool, exemptions []Exemption) {
	t.Helper()
	for role, cases := range map[string][]testCase{
		"writer":        writerCases,
		"load":          loadCases,
		"unique":        uniqueCases(),
		"race":          raceCases,
		"reader":        readerCases,
		"receipts":      receiptCases,
		"records":       recordCases,
		"directory":     directoryCases,
		"keys":          keyCases,
		"rotations":     rotationCases,
		"findings":      findingCases,
		"budgets":       budgetCases,
		"legacy uses":   legacyCases,
		"imports":       importCases,
		"postings":      postingCases,
		"deliveries":    deliveryCases,
		"key uses":      keyUseCases,
		"chain polls":   chainPollCases,
		"keychecks":     keyCheckCases,
		"identity":      identityCases,
		"sign-ins":      signInCases,
		"govern":        governCases,
		"approvals":     approvalCases,
		"polls":         pollCases,
		"probe":         probeCases,
		"policies":      policyCases,
		"webhooks":      webhookCases,
		"unsealed rows": unsealedCases,
		"tokens":        tokenCases,
		"token races":   tokenRaceCases,
		"signing keys":  signingKeyCases,
		"anchors":       anchorCases,
		"full checks":   fullCheckCases,
		"transparency":  transparencyCases,
		"acts":          actCases,
		"events":        eventCases,
		"jobs":          jobCases,
		"kinds of jobs": jobKindCases,
		"streams":       streamCases,
		"signals":       signalCases(exemptions),
	} {
		cases = slices.DeleteFunc(slices.Clone(cases), func(c testCase) bool { return c.concurrent != concurrent })
		if len(cases) == 0 {
			continue
		}
		t.Run(role, func(t *testing.T) {
			t.Parallel()
			for _, test := range cases {
				t.Run(test.name, func(t *testing.T) {
					t.Parallel()
					w := newWorld(t, create(t))
					test.run(t, w)
					if !test.unaudited {
						w.verifyLedger(t)
					}
				})
			}
		})
	}
}

type testCase struct {
	name string
	run  func(t *testing.T, w *world)
	// unaudited cases store records that no ledger would make, or too many to
	// verify each once more.
	unaudited bool
	// concurrent cases start goroutines. internal/architecture checks it.
	concurrent bool
}
