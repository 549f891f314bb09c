package bench

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"countersign/internal/fault"
	"countersign/internal/ledger"
	"countersign/internal/service"
)

// The noisy organization: as many rules as the bounds of a set allow at the bound of a
// rule, on events whose payload has as many entries as estimates reckon with.
const (
	noisyRules   = 10
	noisyEntries = 1000
)

var noisyPayload = `{"rows":[` + strings.Repeat("0,", noisyEntries-1) + `0],"note":"` + strings.Repeat("x", 1000) + `"}`

// measureNeighbours compares one organization's events while another is at its worst
// with the same events while nobody else is there.
func measureNeighbours(ctx context.Context, b *bench) (*Scenario, error) {
	s := &Scenario{
		Title: fmt.Sprintf("durable events beside a noisy organization, %d connections", fewConnections),
		Notes: []string{fmt.Sprintf("the noisy one has %d rules at the bound of what a rule may cost, and %d connections that record events of 3 KB", noisyRules, manyConnections)},
	}
	err := b.onEachService(ctx, withNoisyOrganization, func(t *target) error {
		noisy := *t
		noisy.name += ", noisy"
		err := b.rounds(ctx, []*target{t, &noisy}, s, func(ctx context.Context, measured *target) (*Measurement, error) {
			if measured == &noisy {
				silence, err := makeNoise(ctx, t)
				if err != nil {
					return nil, err
				}
				defer silence()
			}
			return b.eventLoad(measured, fewConnections).drive(ctx)
		})
		if err != nil {
			return err
		}
		ratio := against(s.row(noisy.name).Rounds, s.row(t.name).Rounds, p99Of)
		s.Bars = append(s.Bars, atMost("p99 on "+t.name+" beside the noisy organization, times that without it", 5, ratio, ""))
		return b.timeKillSwitch(ctx, s, t)
	})
	return s, err
}

// timeKillSwitch stops the noisy organization at its worst.
func (b *bench) timeKillSwitch(ctx context.Context, s *Scenario, t *target) error {
	silence, err := makeNoise(ctx, t)
	if err != nil {
		return err
	}
	defer silence()
	pause(ctx, b.Duration)
	began := time.Now()
	_, err = call(ctx, http.DefaultClient, t.server.address, http.MethodPost, "/v1/kill-switch/activate", t.filled.noisyAdmin, `{"reason":"it is at its worst"}`)
	s.Bars = append(s.Bars, atMost("the noisy organization's kill switch on "+t.name+" answers within", 3, time.Since(began).Seconds(), "s"))
	return err
}

// makeNoise records events of the noisy organization until silence is called.
func makeNoise(ctx context.Context, t *target) (silence func(), err error) {
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: manyConnections}}
	silence = func() {
		cancel()
		running.Wait()
		client.CloseIdleConnections()
	}
	chain, err := call(ctx, client, t.server.address, http.MethodPost, "/v1/chains", t.filled.noisyAgent, chainBody)
	if err != nil {
		silence()
		return nil, err
	}
	id, err := idIn(chain.Body, idMember)
	if err != nil {
		silence()
		return nil, err
	}
	body := `{"agent_name":"noisy","action_type":"tool_call","action_name":"match_records","payload":` + noisyPayload + `}`
	for range manyConnections {
		running.Go(func() {
			for ctx.Err() == nil {
				// What is refused is load too.
				if _, err := call(ctx, client, t.server.address, http.MethodPost, "/v1/chains/"+id+"/events", t.filled.noisyAgent, body); err != nil {
					pause(ctx, 10*time.Millisecond)
				}
			}
		})
	}
	return silence, nil
}

// withNoisyOrganization is a store with a second organization, whose rules are as slow
// as rules may be.
func withNoisyOrganization(ctx context.Context, r *records) (*filled, error) {
	operator := r.service.Operator()
	org, first, err := operator.CreateOrganization(ctx, "noisy", "")
	if err != nil {
		return nil, err
	}
	agent, err := operator.CreateKey(ctx, org.Slug, &service.KeyRequest{Name: "noisy", Role: ledger.RoleAgent})
	if err != nil {
		return nil, err
	}
	admin, err := r.service.Authenticate(ctx, first.Text.Reveal())
	if err != nil {
		return nil, err
	}
	for comparisons := 47; comparisons > 0; comparisons-- {
		_, err = r.service.PutPolicy(ctx, admin, slowestRules(comparisons))
		var refused *fault.Error
		if !errors.As(err, &refused) || refused.Code != fault.CodeInvalid {
			break
		}
	}
	return &filled{noisyAgent: agent.Text.Reveal(), noisyAdmin: first.Text.Reveal()}, err
}

// slowestRules is a set of rules that compare each entry of a list so often.
func slowestRules(comparisons int) *service.PolicyDocument {
	var text strings.Builder
	text.WriteString("rules:\n")
	condition := "r == 1"
	for i := range comparisons - 1 {
		condition += fmt.Sprintf(" || r == %d", i+2)
	}
	for i := range noisyRules {
		fmt.Fprintf(&text, "  - name: rule-%d\n    when: 'action.payload.rows.exists(r, %s)'\n    decision: deny\n    reason: not in the bench\n", i+1, condition)
	}
	return &service.PolicyDocument{Text: []byte(text.String()), YAML: true}
}
