package ledger

import (
	"math"
	"strings"

	"github.com/google/uuid"
	"pgregory.net/rapid"

	"countersign/internal/canon"
)

// Generators of records that the service can make: any text that a request may contain, any time,
// any amount.

func anyText(limit int) *rapid.Generator[string] {
	return rapid.Map(rapid.StringN(0, min(limit, 40), -1), func(text string) string {
		return strings.ReplaceAll(text, "\x00", "\\\"")
	})
}

func someText(limit int) *rapid.Generator[string] {
	return rapid.Map(anyText(limit), func(text string) string {
		if text == "" {
			return "\u2028"
		}
		return text
	})
}

func anyTexts() *rapid.Generator[[]string] { return rapid.SliceOfN(someText(maxName), 1, 5) }

func anyUUID() *rapid.Generator[uuid.UUID] {
	return rapid.Map(rapid.SliceOfN(rapid.Byte(), 16, 16), func(b []byte) uuid.UUID { return uuid.UUID(b) })
}

func anyHash() *rapid.Generator[[32]byte] {
	return rapid.Map(rapid.SliceOfN(rapid.Byte(), 32, 32), func(b []byte) [32]byte { return [32]byte(b) })
}

func anyTime() *rapid.Generator[Time] {
	return rapid.Map(rapid.Int64Range(int64(earliestTime), int64(latestTime)), func(ms int64) Time { return Time(ms) })
}

func anyCount() *rapid.Generator[int64] { return rapid.Int64Range(0, maxCount) }

// anyAmount covers all doubles, including absurd amounts of money.
func anyAmount() *rapid.Generator[Money] {
	return rapid.OneOf(
		rapid.Map(rapid.Float64Range(0, maxAmount), MoneyOf),
		rapid.Map(rapid.Int64Range(0, 1_000_000), func(cents int64) Money { return MoneyOf(float64(cents) / 100) }),
		rapid.Just(MoneyOf(math.SmallestNonzeroFloat64)),
	)
}

func maybe[T any](g *rapid.Generator[T]) *rapid.Generator[*T] { return rapid.Ptr(g, true) }

// anyObject generates a canonical object of up to three levels.
func anyObject() *rapid.Generator[[]byte] {
	return rapid.Map(anyMembers(3), func(v canon.Value) []byte { return v.Append(nil) })
}

func anyMembers(depth int) *rapid.Generator[canon.Value] {
	return rapid.Custom(func(t *rapid.T) canon.Value {
		members := rapid.MapOfN(anyText(maxName), anyValue(depth-1), 0, 4).Draw(t, "members")
		var list []canon.Member
		for name, value := range members {
			list = append(list, canon.Member{Name: name, Value: value})
		}
		return must(canon.ObjectValue(list...))
	})
}

func anyValue(depth int) *rapid.Generator[canon.Value] {
	scalars := []*rapid.Generator[canon.Value]{
		rapid.Just(canon.NullValue()),
		rapid.Map(rapid.Bool(), canon.BoolValue),
		rapid.Map(rapid.Float64Range(-1e300, 1e300), func(f float64) canon.Value { return must(canon.NumberValue(f)) }),
		rapid.Map(anyText(maxName), func(s string) canon.Value { return must(canon.StringValue(s)) }),
	}
	if depth > 0 {
		scalars = append(scalars, anyMembers(depth))
	}
	return rapid.OneOf(scalars...)
}

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

func anyMetrics() *rapid.Generator[Metrics] {
	return rapid.Custom(func(t *rapid.T) Metrics {
		return Metrics{
			FinancialExposure:      anyAmount().Draw(t, "exposure").Add(anyAmount().Draw(t, "more")),
			ExternalCommunications: anyCount().Draw(t, "communications"),
			RecordsModified:        anyCount().Draw(t, "records"),
			ExternalDomains:        anyTexts().Draw(t, "domains"),
			EstimatedCost:          anyAmount().Draw(t, "cost"),
			UnpricedCalls:          anyCount().Draw(t, "unpriced"),
		}
	})
}

func anyChain() *rapid.Generator[*Chain] {
	return rapid.Custom(func(t *rapid.T) *Chain {
		return &Chain{
			ID: ChainID{anyUUID().Draw(t, "id")}, Org: OrgID{anyUUID().Draw(t, "org")}, OpenedBy: KeyID{anyUUID().Draw(t, "key")},
			Name: anyText(maxName).Draw(t, "name"), ExternalID: anyText(maxName).Draw(t, "external"),
			Environment: anyText(maxName).Draw(t, "environment"),
			Metadata:    anyObject().Draw(t, "metadata"), PolicyConfig: anyPolicyConfig().Draw(t, "config"),
			FallbackApprovers: anyTexts().Draw(t, "approvers"), FailModes: anyObject().Draw(t, "modes"),
			FastPath: rapid.Bool().Draw(t, "fast"), StartedAt: anyTime().Draw(t, "started"),
			IdempotencyKey: anyText(MaxIdempotencyKey).Draw(t, "idempotency"), BindingKeyID: anyText(maxName).Draw(t, "binding"),
		}
	})
}

func anyState() *rapid.Generator[*ChainState] {
	return rapid.Custom(func(t *rapid.T) *ChainState {
		state := &ChainState{
			Status:  rapid.SampledFrom(ChainStatuses).Draw(t, "status"),
			Actions: anyCount().Draw(t, "actions"), Entries: anyCount().Draw(t, "entries"), Markers: anyCount().Draw(t, "markers"), Digest: anyHash().Draw(t, "digest"),
			Agents: anyTexts().Draw(t, "agents"), Metrics: anyMetrics().Draw(t, "metrics"),
			PolicyVersion: anyText(maxName).Draw(t, "policy"), LastAt: anyTime().Draw(t, "last"),
			CompletedAt: maybe(anyTime()).Draw(t, "completed"),
		}
		if rapid.Bool().Draw(t, "leased") {
			state.Leases = UsedLeases{Forgotten: rapid.Uint64().Draw(t, "forgotten"), Used: []UsedLease{{
				Serial: rapid.Uint64().Draw(t, "serial"), Actions: rapid.Int64Range(0, maxLeaseActions).Draw(t, "under it"),
			}}}
		}
		if rapid.Bool().Draw(t, "sealed") {
			state.Receipt = &ReceiptID{anyUUID().Draw(t, "receipt")}
			state.Failure = &Failure{Type: anyText(maxName).Draw(t, "type"), Message: anyText(maxText).Draw(t, "message")}
		}
		return state
	})
}

func anyDecision() *rapid.Generator[Decision] {
	outcomes := rapid.SampledFrom([]Outcome{Allow, AllowWithFlag, RequireApproval, Deny})
	return rapid.Custom(func(t *rapid.T) Decision {
		return Decision{
			Outcome: outcomes.Draw(t, "outcome"), Reason: anyText(maxText).Draw(t, "reason"), Source: SourceBackend,
			PolicyName: anyText(maxName).Draw(t, "policy"), PolicyVersion: anyText(maxName).Draw(t, "version"),
			KillSwitchActive: rapid.Bool().Draw(t, "kill"), PauseReason: anyText(maxText).Draw(t, "pause"),
			Remediation: anyText(maxText).Draw(t, "remediation"), DocsURL: anyText(maxText).Draw(t, "docs"),
			Mode: rapid.SampledFrom([]Mode{"", Enforce, Shadow}).Draw(t, "mode"), Shadow: outcomes.Draw(t, "shadow"),
			EstimatedCost: maybe(anyAmount()).Draw(t, "cost"), AutoPaused: rapid.Bool().Draw(t, "paused"),
		}
	})
}

func anyEvent() *rapid.Generator[*Event] {
	return rapid.Custom(func(t *rapid.T) *Event {
		return &Event{
			ID: EventID{anyUUID().Draw(t, "id")}, Chain: ChainID{anyUUID().Draw(t, "chain")},
			Sequence: rapid.Int64Range(1, maxCount).Draw(t, "sequence"),
			Action: Action{
				AgentName: anyText(maxName).Draw(t, "agent"), ActionType: anyText(maxName).Draw(t, "type"),
				ActionName: anyText(maxName).Draw(t, "name"), ParentAgentName: anyText(maxName).Draw(t, "parent"),
				Payload: anyObject().Draw(t, "payload"), Metadata: anyObject().Draw(t, "metadata"),
				IdempotencyKey: anyText(MaxIdempotencyKey).Draw(t, "key"), ExecutedAt: maybe(anyTime()).Draw(t, "executed"),
				Facts: anyFacts().Draw(t, "facts"), Redactions: rapid.OneOf(rapid.Just[[]byte](nil), anyObject()).Draw(t, "redactions"),
				SentHMAC: anyText(maxName).Draw(t, "sent"), FoundSHA256: anyText(maxName).Draw(t, "found"),
			},
			Approval: ApprovalID{anyUUID().Draw(t, "approval")},
			Act:      anyCount().Draw(t, "act"), Lease: anyText(maxLeaseID).Draw(t, "lease"),
			Decision: anyDecision().Draw(t, "decision"), Status: EventAllowed, RecordedAt: anyTime().Draw(t, "recorded"),
		}
	})
}

// anyPolicyConfig generates what a client may send when it opens a chain.
func anyPolicyConfig() *rapid.Generator[[]byte] {
	return rapid.Custom(func(t *rapid.T) []byte {
		w := canon.BeginObject(nil)
		given := func(name string) bool { return rapid.Bool().Draw(t, name) }
		if given("timeout") {
			w.Number("approval_timeout_hours", rapid.Float64Range(minTimeoutHours, maxTimeoutHours).Draw(t, "hours"))
		}
		if given("chain") {
			w.Number("chain_timeout_seconds", rapid.Float64Range(0, maxSeconds).Draw(t, "seconds"))
		}
		if given("cumulative") {
			w.Number("cumulative_financial_threshold_usd", rapid.Float64Range(0, 20000).Draw(t, "total"))
		}
		if given("domains") {
			w.Strings("external_domains_allowlist", rapid.SliceOfN(rapid.SampledFrom([]string{"example.com", "a.example.com", "example.org"}), 0, 3).Draw(t, "allowed"))
		}
		if given("single") {
			w.Number("financial_approval_threshold_usd", rapid.Float64Range(0, 20000).Draw(t, "amount"))
		}
		if given("agents") {
			w.Strings("high_risk_agents", rapid.SliceOfN(rapid.SampledFrom([]string{"payer", "writer"}), 0, 2).Draw(t, "risky"))
		}
		return w.End()
	})
}

func anyFacts() *rapid.Generator[Facts] {
	return rapid.Custom(func(t *rapid.T) Facts {
		return Facts{
			Categories: anyTexts().Draw(t, "categories"), Amount: maybe(anyAmount()).Draw(t, "amount"),
			ExternalDomains: anyTexts().Draw(t, "domains"), RecordsModified: anyCount().Draw(t, "records"),
		}
	})
}

func anyReport() *rapid.Generator[*Entry] {
	return rapid.Custom(func(t *rapid.T) *Entry {
		return &Entry{
			Kind:  EntryOutcome,
			Event: EventID{anyUUID().Draw(t, "event")}, Sequence: rapid.Int64Range(1, maxCount).Draw(t, "sequence"),
			Position: rapid.Int64Range(1, maxCount).Draw(t, "position"),
			Result:   rapid.SampledFrom([]Result{Succeeded, Failed, Unknown}).Draw(t, "result"),
			Detail:   anyText(maxText).Draw(t, "detail"), RecordedAt: anyTime().Draw(t, "recorded"),
		}
	})
}

func anyReceipt() *rapid.Generator[*Receipt] {
	line := rapid.Custom(func(t *rapid.T) SummaryLine {
		return SummaryLine{
			AgentName: anyText(maxName).Draw(t, "agent"), ActionName: anyText(maxName).Draw(t, "name"),
			ActionType: rapid.OneOf(anyText(maxName), rapid.Just(ActionTypeGap)).Draw(t, "type"),
			Outcome:    rapid.SampledFrom([]Outcome{"", Allow, Deny}).Draw(t, "outcome"), Count: anyCount().Draw(t, "count"),
			FirstAt: anyTime().Draw(t, "first"), LastAt: anyTime().Draw(t, "last"),
		}
	})
	return rapid.Custom(func(t *rapid.T) *Receipt {
		return &Receipt{
			ID: ReceiptID{anyUUID().Draw(t, "id")}, Number: anyText(maxName).Draw(t, "number"), Chain: ChainID{anyUUID().Draw(t, "chain")},
			Environment: anyText(maxName).Draw(t, "environment"), ExternalID: anyText(maxName).Draw(t, "external"),
			Mode:         rapid.SampledFrom([]Mode{"", Enforce, Shadow}).Draw(t, "mode"),
			Organization: anyText(maxName).Draw(t, "org"), Summary: anyText(maxText).Draw(t, "summary"),
			StartedAt: anyTime().Draw(t, "started"), CompletedAt: anyTime().Draw(t, "completed"), GeneratedAt: anyTime().Draw(t, "generated"),
			Agents: anyTexts().Draw(t, "agents"), Actions: anyCount().Draw(t, "actions"), Metrics: anyMetrics().Draw(t, "metrics"),
			Events: rapid.SliceOfN(line, 0, 4).Draw(t, "events"), PolicyVersion: anyText(maxName).Draw(t, "policy"),
			PreviousHash: maybe(anyHash()).Draw(t, "previous"), Metadata: anyObject().Draw(t, "metadata"),
			EventsDigest: anyHash().Draw(t, "digest"), KeyID: anyText(maxName).Draw(t, "key"), Signature: anyText(maxName).Draw(t, "signature"),
		}
	})
}
