package bench

import "time"

// Report is the outcome of a run.
type Report struct {
	Machine   Machine     `json:"machine"`
	Rounds    int         `json:"rounds"`
	Duration  string      `json:"duration"`
	Scenarios []*Scenario `json:"scenarios"`
}

// Machine says where the figures were taken.
type Machine struct {
	System   string   `json:"system"`
	Go       string   `json:"go"`
	Cores    int      `json:"cores"`
	Pinning  string   `json:"pinning"`
	Warnings []string `json:"warnings"`
}

// Scenario is what one scenario found.
type Scenario struct {
	Name    string   `json:"name"`
	Title   string   `json:"title"`
	Notes   []string `json:"notes"`
	Rows    []*Row   `json:"rows,omitempty"`
	Figures []Figure `json:"figures,omitempty"`
	Bars    []Bar    `json:"bars,omitempty"`
}

// Row is one target under load: medians of the rounds that count, and those rounds
// themselves.
type Row struct {
	Target string `json:"target"`
	// Cost is the server's processor time for one request that counts: on a shared
	// machine it drifts far less than the rate. BackendCost is that of PostgreSQL's
	// processes for it.
	Cost        time.Duration `json:"cpu_per_request_ns"`
	BackendCost time.Duration `json:"backend_cpu_per_request_ns,omitempty"`
	// CPURatio and Ratio are the medians of the ratios that each round has to the bare
	// server of the same round, of the server's processor time for a request and of
	// the rate; 0 where there is no bare server.
	CPURatio  float64       `json:"cpu_ratio_to_bare,omitempty"`
	Rate      float64       `json:"per_second"`
	Ratio     float64       `json:"ratio_to_bare,omitempty"`
	P50       time.Duration `json:"p50_ns"`
	P99       time.Duration `json:"p99_ns"`
	ServerCPU float64       `json:"server_cpu"`
	LoadCPU   float64       `json:"load_cpu"`
	// Dropped is how many rounds do not count, because a server had too little of its
	// core in them.
	Dropped int            `json:"dropped_rounds"`
	Rounds  []*Measurement `json:"rounds"`
}

// Figure is a value by itself.
type Figure struct {
	What  string  `json:"what"`
	Value float64 `json:"value"`
	Unit  string  `json:"unit"`
}

// Bar is what a figure is meant to reach. It informs; it fails nothing, for
// the machine may be busy with something else.
type Bar struct {
	What    string  `json:"what"`
	AtLeast bool    `json:"at_least"` // else: at most
	Want    float64 `json:"want"`
	Got     float64 `json:"got"`
	Unit    string  `json:"unit,omitempty"`
	Met     bool    `json:"met"`
}

func atLeast(what string, want, got float64, unit string) Bar {
	return Bar{What: what, AtLeast: true, Want: want, Got: got, Unit: unit, Met: got >= want}
}

func atMost(what string, want, got float64, unit string) Bar {
	return Bar{What: what, Want: want, Got: got, Unit: unit, Met: got <= want}
}

// Measurement is one target in one round.
type Measurement struct {
	Requests int           `json:"requests"` // those that count
	Others   int           `json:"others"`   // load that does not count, such as opening chains
	Elapsed  time.Duration `json:"elapsed_ns"`
	P50      time.Duration `json:"p50_ns"`
	P99      time.Duration `json:"p99_ns"`
	// Cores' worth of processor time that each side used.
	ServerCPU  float64 `json:"server_cpu"`
	BackendCPU float64 `json:"backend_cpu,omitempty"` // PostgreSQL's processes
	LoadCPU    float64 `json:"load_cpu"`
	// CoreShare is the part of its core that the server had, used or left idle.
	CoreShare float64 `json:"core_share,omitempty"`
}

func (m *Measurement) rate() float64 {
	if m.Elapsed <= 0 {
		return 0
	}
	return float64(m.Requests) / m.Elapsed.Seconds()
}

// cost is the server's processor time for a request, in nanoseconds.
func (m *Measurement) cost() float64 {
	return quotient(m.ServerCPU*float64(m.Elapsed), float64(m.Requests))
}

func (m *Measurement) backendCost() float64 {
	return quotient(m.BackendCPU*float64(m.Elapsed), float64(m.Requests))
}

// summarize makes a row of a target's rounds.
func summarize(target string, rounds []*Measurement) *Row {
	return &Row{
		Target: target, Rounds: rounds,
		Rate:      medianOf(rounds, (*Measurement).rate),
		P50:       time.Duration(medianOf(rounds, p50Of)),
		P99:       time.Duration(medianOf(rounds, p99Of)),
		ServerCPU: medianOf(rounds, func(m *Measurement) float64 { return m.ServerCPU }),
		LoadCPU:   medianOf(rounds, func(m *Measurement) float64 { return m.LoadCPU }),

		Cost:        time.Duration(medianOf(rounds, (*Measurement).cost)),
		BackendCost: time.Duration(medianOf(rounds, (*Measurement).backendCost)),
	}
}

// against is the median of the rounds' own ratios, so that an hour in which the
// whole machine was slow weighs on both sides.
func against(ours, theirs []*Measurement, value func(*Measurement) float64) float64 {
	ratios := make([]float64, 0, len(ours))
	for i := range min(len(ours), len(theirs)) {
		ratios = append(ratios, quotient(value(ours[i]), value(theirs[i])))
	}
	return median(ratios)
}

func p50Of(m *Measurement) float64 { return float64(m.P50) }
func p99Of(m *Measurement) float64 { return float64(m.P99) }
