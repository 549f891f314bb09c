// Package storetest is the conformance suite of the storage port: it has a case for every guarantee
// in the comments of package store.
//
// Each case has its own database. If its records are real, made by package ledger with keys, the
// whole ledger is verified after the case.
package storetest

import (
	"slices"
	"testing"

	"countersign/internal/store"
)

// Opener opens another handle on the same database, independent of the others like that of another
// process. The handle is closed when the test ends.
type Opener func(t *testing.T) store.Store

// Exemption excuses a store from a part of the contract.
type Exemption string

// SignalsStayInHandle is for a store that only one process uses: only watchers of the same handle
// receive its signals.
const SignalsStayInHandle Exemption = "signals stay in the handle"

// Run tests the parts of the contract that a single caller can observe. create makes an empty,
// migrated database, removes it when the test ends, and returns its opener.
func Run(t *testing.T, create func(t *testing.T) Opener) {
	t.Helper()
	runCases(t, create, false, nil)
}

// RunConcurrent tests the guarantees for concurrent callers. Its cases start goroutines, so run it
// under the race detector.
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
	// unaudited is set for cases that store records that no ledger would make, or too many to
	// verify again.
	unaudited bool
	// concurrent is set for cases that start goroutines. internal/architecture checks it.
	concurrent bool
}
