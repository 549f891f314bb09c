package ledger

import (
	"fmt"
	"testing"

	"countersign/internal/canon"
)

// book is an organization's ledger in memory, as the service would have stored it.
type book struct {
	t        testing.TB
	org      OrgID
	slug     string
	keys     testKeys
	head     *Head
	receipts []*StoredReceipt
	chains   []*page
}

// page is one chain with all its entries.
type page struct {
	chain   *Chain
	state   *ChainState
	entries []any // *StoredEvent and *Addendum, by position
	receipt *Receipt
}

const firstMoment = Time(1_798_761_599_000) // 2026-12-31T23:59:59Z

func newBook(t testing.TB) *book {
	org := OrgID{must(ParseID(sampleID))}
	return &book{t: t, org: org, slug: "acme", keys: keyRing, head: NewHead(org, keyRing)}
}

// open opens the n-th chain with the metadata of the request.
func (b *book) open(metadata string) *page {
	n := byte(len(b.chains) + 1)
	now := firstMoment + Time(n)*600
	p := &page{chain: &Chain{
		ID: ChainID{NewTimedID(now, [10]byte{n})}, Org: b.org, OpenedBy: KeyID{NewTimedID(0, [10]byte{1})},
		Name: fmt.Sprintf("chain %d", n), Environment: DefaultEnvironment, FailModes: []byte(`{"default":"allow"}`), FastPath: true,
		StartedAt: now,
	}}
	if metadata != "" {
		v, err := canon.Parse([]byte(metadata))
		if err != nil {
			b.t.Fatal(err)
		}
		p.chain.Metadata = v.Append(nil)
	}
	p.state = NewChainState(now, BuiltinPolicy.Version)
	b.chains = append(b.chains, p)
	return p
}

func (p *page) record(agent, name, payload, key string) *Event {
	action := &Action{AgentName: agent, ActionType: "tool_call", ActionName: name, Payload: must(canon.Canonicalize([]byte(payload))), IdempotencyKey: key}
	sequence := byte(p.state.Actions + 1)
	recorded := p.state.Record(plainly(p.chain, action, p.state.LastAt+7, [10]byte{sequence}))
	p.entries = append(p.entries, recorded.Stored)
	return recorded.Event
}

// gap records that the client dropped events.
func (p *page) gap(key string) *Event {
	return p.act(&Action{
		AgentName: "countersign", ActionType: ActionTypeGap, ActionName: "dropped_events", Source: SourceOffline, IdempotencyKey: key,
		Payload: []byte(`{"dropped":3,"from":"2026-12-31T23:59:00.000Z","to":"2026-12-31T23:59:01.000Z"}`),
	}, Enforce)
}

// act records an action in an organization of the mode.
func (p *page) act(action *Action, mode Mode) *Event {
	recording := plainly(p.chain, action, p.state.LastAt+7, [10]byte{byte(p.state.Actions + 1)})
	recording.Org.Settings.EvaluationMode = mode
	recorded := p.state.Record(recording)
	p.entries = append(p.entries, recorded.Stored)
	return recorded.Event
}

// plainly returns a recording of an action in an organization with the default settings.
func plainly(chain *Chain, action *Action, now Time, random [10]byte) *Recording {
	return &Recording{
		Keys: keyRing, Policy: BuiltinPolicy, Org: &Organization{ID: chain.Org, Slug: "acme", Settings: DefaultSettings()},
		Chain: chain, Action: action, Now: now, Random: random,
		NewApproval: func() ApprovalID { return ApprovalID{NewRandomID([16]byte{random[0]})} },
	}
}

func (p *page) report(t testing.TB, sequence int64, result Result, detail string) {
	t.Helper()
	var earlier []*Entry
	var event *RecordedEvent
	for _, entry := range p.entries {
		switch e := entry.(type) {
		case *StoredEvent:
			if e.Sequence == sequence {
				event = must(DecodeEvent(e.Body))
			}
		case *Addendum:
			if e.Sequence == sequence {
				earlier = append(earlier, must(DecodeEntry(e.Body)))
			}
		}
	}
	_, addendum, err := p.state.ReportOutcome(event, earlier, Entry{Kind: EntryOutcome, Result: result, Detail: detail}, p.state.LastAt+3)
	if err != nil {
		t.Fatal(err)
	}
	p.entries = append(p.entries, addendum)
}

func (p *page) summary() *Summary {
	summary := &Summary{}
	for _, entry := range p.entries {
		if event, ok := entry.(*StoredEvent); ok {
			summary.Count(&must(DecodeEvent(event.Body)).Event)
		}
	}
	return summary
}

// sealing completes a chain without approvals.
func (b *book) sealing(p *page, summary *Summary, now Time) *Sealing {
	return &Sealing{Keys: b.keys, Head: must(b.head.Open(b.keys)), Slug: b.slug, Chain: p.chain, State: p.state, Summary: summary, Completion: &Completion{}, Now: now}
}

func (b *book) seal(p *page, c *Completion) *StoredReceipt {
	b.t.Helper()
	n := byte(len(b.receipts) + 1)
	sealing := b.sealing(p, p.summary(), p.state.LastAt+11)
	sealing.Completion, sealing.ID = c, ReceiptID{NewRandomID([16]byte{n})}
	receipt, stored, err := Seal(sealing)
	if err != nil {
		b.t.Fatal(err)
	}
	p.receipt, b.head = receipt, sealing.Head.Sign(b.keys)
	b.receipts = append(b.receipts, stored.StoredReceipt)
	return stored.StoredReceipt
}

// filled returns a book of n receipts with a few events each.
func filled(t testing.TB, n int) *book {
	b := newBook(t)
	for i := range n {
		p := b.open("")
		for j := range i%3 + 1 {
			p.record("agent", "step", fmt.Sprintf(`{"n":%d}`, j), "")
		}
		b.seal(p, &Completion{})
	}
	return b
}
