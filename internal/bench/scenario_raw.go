package bench

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"countersign/internal/classify"
	"countersign/internal/ledger"
	"countersign/internal/service"
	"countersign/internal/verify"
)

func measureRaw(ctx context.Context, b *bench) (*Scenario, error) {
	s := &Scenario{
		Title: "what the machine gives",
		Notes: []string{"fdatasync after appends of 64 KiB; hashing on one core: one HMAC-SHA256 and one SHA-256 over a receipt's bytes"},
	}
	receipt, err := b.receiptBytes(ctx)
	if err != nil {
		return nil, err
	}
	b.cores.pinSelf()
	defer b.cores.unpinSelf()
	var syncs []*Measurement
	var rates []float64
	for range b.Rounds {
		m, err := b.timeSyncs(ctx)
		if err != nil {
			return nil, err
		}
		rate, err := hashRate(ctx, receipt, b.Duration/3)
		if err != nil {
			return nil, err
		}
		syncs, rates = append(syncs, m), append(rates, rate)
	}
	s.Rows = append(s.Rows, summarize(syncName, syncs))
	s.Figures = []Figure{
		{"receipt size", float64(len(receipt)), "bytes"},
		{"HMAC-SHA256 and SHA-256, one core", median(rates), "receipts/s"},
		{"bytes hashed, one core", median(rates) * float64(2*len(receipt)) / 1e6, "MB/s"},
	}
	return s, nil
}

// receiptBytes makes a real receipt of a chain of ten events.
func (b *bench) receiptBytes(ctx context.Context) ([]byte, error) {
	var made *filled
	err := b.withRecords(ctx, sqliteName, func(r *records) (err error) {
		made, err = r.fill(ctx, 1, eventsPerCompletion, true)
		return err
	})
	if err != nil {
		return nil, err
	}
	return made.body, nil
}

// repeat does something over and over for a time, and returns how often in a second.
func repeat(ctx context.Context, duration time.Duration, one func() error) (rate float64, err error) {
	const stretch = 256 // between two looks at the clock
	began := time.Now()
	for count := stretch; ; count += stretch {
		for range stretch {
			if err := one(); err != nil {
				return 0, err
			}
		}
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		if took := time.Since(began); took >= duration {
			return float64(count) / took.Seconds(), nil
		}
	}
}

// hashRate is how many receipts a second one core can authenticate and hash,
// with nothing else to do.
func hashRate(ctx context.Context, receipt []byte, duration time.Duration) (float64, error) {
	mac := hmac.New(sha256.New, make([]byte, 32))
	var sum [sha256.Size]byte
	return repeat(ctx, duration, func() error {
		mac.Reset()
		mac.Write(receipt)
		mac.Sum(sum[:0])
		sum = sha256.Sum256(receipt)
		return nil
	})
}

// hashRates is what so many cores reach at once.
func hashRates(ctx context.Context, receipt []byte, cores int, duration time.Duration) (total float64, err error) {
	rates := make([]float64, cores)
	var running errgroup.Group
	for i := range rates {
		running.Go(func() (err error) {
			rates[i], err = hashRate(ctx, receipt, duration)
			return err
		})
	}
	err = running.Wait()
	for _, rate := range rates {
		total += rate
	}
	return total, err
}

func measureAudit(ctx context.Context, b *bench) (*Scenario, error) {
	cores := len(b.cores.all)
	s := &Scenario{
		Title: fmt.Sprintf("audit scan of %d receipts on %d cores", b.Receipts, cores),
		Notes: []string{"signatures and links over the stored bytes; the raw speed is that of all cores hashing at once, which on shared cores is less than the sum of each by itself"},
	}
	for _, name := range b.serviceNames() {
		if err := b.auditOn(ctx, name, cores, s); err != nil {
			return nil, err
		}
	}
	return s, nil
}

func (b *bench) auditOn(ctx context.Context, name string, cores int, s *Scenario) error {
	var rates, ratios, shares []float64
	err := b.withRecords(ctx, name, func(r *records) error {
		made, err := r.fill(ctx, b.Receipts, len(actionNames), true)
		if err != nil {
			return err
		}
		for range b.Rounds {
			b.cores.pinSelf()
			alone, err := hashRate(ctx, made.body, b.Duration/3)
			b.cores.unpinSelf()
			if err != nil {
				return err
			}
			raw, err := hashRates(ctx, made.body, cores, b.Duration/3)
			if err != nil {
				return err
			}
			rate, err := b.auditRate(ctx, r)
			if err != nil {
				return err
			}
			b.Progress("  %s: %.0f receipts/s", name, rate)
			rates, ratios = append(rates, rate), append(ratios, quotient(rate, raw))
			shares = append(shares, quotient(rate, alone*float64(cores)))
		}
		return nil
	})
	if err != nil {
		return err
	}
	s.Figures = append(s.Figures, Figure{"audit on " + name, median(rates), "receipts/s"},
		Figure{fmt.Sprintf("audit on %s, of one core's speed by itself times %d", name, cores), median(shares), ""})
	want := 0.6
	if name == postgresName {
		want = 0.5
	}
	s.Bars = append(s.Bars, atLeast("audit on "+name+", of the raw hashing speed", want, median(ratios), ""))
	return nil
}

// auditRate audits the whole ledger until a round is over.
func (b *bench) auditRate(ctx context.Context, r *records) (float64, error) {
	began := time.Now()
	var checked int64
	for checked == 0 || time.Since(began) < b.Duration {
		report, err := r.service.Operator().Audit(ctx, r.org.Slug, verify.AuditOptions{ReceiptsOnly: true})
		if err != nil {
			return 0, err
		}
		if report.Status != verify.AuditIntact || report.Receipts != int64(b.Receipts) {
			return 0, fmt.Errorf("the audit of a new ledger found %s after %d receipts", report.Status, report.Receipts)
		}
		checked += report.Receipts
	}
	return float64(checked) / time.Since(began).Seconds(), nil
}

func measureDecision(ctx context.Context, b *bench) (*Scenario, error) {
	org := &ledger.Organization{Settings: ledger.DefaultSettings()}
	f, err := newFiller(&records{org: org, agent: placeholderKey()})
	if err != nil {
		return nil, err
	}
	policy, err := service.CompilePolicy(policyDocument(benchRules))
	if err != nil {
		return nil, err
	}
	now := ledger.TimeOf(time.Now())
	state := ledger.NewChainState(now, policy.Version)
	b.cores.pinSelf()
	defer b.cores.unpinSelf()
	var times []float64
	for range b.Rounds {
		rate, err := repeat(ctx, b.Duration/3, func() error {
			payload, metadata := f.action.Values()
			found := classify.Classify(classify.Input{
				ActionType: f.action.ActionType, ActionName: f.action.ActionName, Payload: payload, Metadata: metadata,
			})
			q := &ledger.Question{Org: org, Chain: &f.opened, State: state, Action: &f.action, Now: now}
			if d := ledger.Decide(policy, q); d.Outcome != ledger.Allow || found.Amount != nil {
				return errors.New("an action of the bench was not allowed")
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
		times = append(times, float64(time.Second)/rate)
	}
	return &Scenario{
		Title:   "the decision itself",
		Notes:   []string{fmt.Sprintf("classifying an action and holding it against the built-in rules and %d of the organization's own, one core", benchRules)},
		Figures: []Figure{{"one decision", median(times), "ns"}},
		Bars:    []Bar{atMost("one decision", 25, median(times)/1000, "µs")},
	}, nil
}

// placeholderKey stands in where no store is behind the records.
func placeholderKey() *service.NewKey { return &service.NewKey{Record: &ledger.KeyRecord{}} }
