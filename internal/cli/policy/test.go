package policy

import (
	"fmt"
	"path/filepath"
	"strings"

	"countersign/internal/cli"
	"countersign/internal/ledger"
	"countersign/internal/policy"
	"countersign/internal/service"
)

type policyTestCommand struct {
	File  string   `arg:"" help:"The policy set, YAML or JSON."  type:"path"`
	Cases []string `arg:"" optional:"" help:"Files of cases; the default is NAME.cases.yaml next to the set." type:"path"`
	JSON  bool     `name:"json" help:"Print JSON." env:"-"`
}

// TestResult is the result of all cases.
type TestResult struct {
	File     string          `json:"file"`
	Passed   int             `json:"passed"`
	Failed   int             `json:"failed"`
	Cases    []testedCase    `json:"cases"`
	Problems []policyProblem `json:"problems,omitempty"` // in files that were refused
}

type testedCase struct {
	File       string   `json:"file"`
	Name       string   `json:"name"`
	Passed     bool     `json:"passed"`
	Decision   string   `json:"policy_decision,omitempty"`
	PolicyName *string  `json:"policy_name"`
	Status     string   `json:"status,omitempty"`
	Reason     string   `json:"decision_reason,omitempty"`
	Faults     []string `json:"faults,omitempty"`
}

// Run decides every case like the service.
func (c *policyTestCommand) Run(p *cli.Process) error {
	result, err := c.test()
	if err != nil {
		return cli.Inconclusive(err)
	}
	if err := c.print(p, result); err != nil {
		return err
	}
	if result.Failed > 0 || len(result.Problems) > 0 {
		return &cli.ExitError{Code: cli.ExitFailed}
	}
	return nil
}

func (c *policyTestCommand) test() (*TestResult, error) {
	result := &TestResult{File: c.File, Cases: []testedCase{}}
	text, err := readPolicyFile(c.File)
	if err != nil {
		return nil, err
	}
	// CompilePolicy reports no places, so the set is parsed here first.
	if _, result.Problems, err = parsePolicy(c.File, text); err != nil || len(result.Problems) > 0 {
		return result, err
	}
	compiled, err := service.CompilePolicy(documentOf(c.File, text))
	if err != nil {
		return nil, err
	}
	for _, file := range c.files() {
		cases, problems, err := readCases(file)
		if err != nil {
			return nil, err
		}
		result.Problems = append(result.Problems, problems...)
		for i := range cases {
			result.add(runCase(compiled, file, &cases[i]))
		}
	}
	return result, nil
}

func (c *policyTestCommand) files() []string {
	if len(c.Cases) > 0 {
		return c.Cases
	}
	return []string{strings.TrimSuffix(c.File, filepath.Ext(c.File)) + ".cases.yaml"}
}

func readCases(path string) ([]policy.Case, []policyProblem, error) {
	text, err := readPolicyFile(path)
	if err != nil {
		return nil, nil, fmt.Errorf("cases: %w", err)
	}
	cases, err := policy.ParseCases(text)
	problems, err := problemsOf(path, err)
	return cases, problems, err
}

func (r *TestResult) add(c testedCase) {
	if c.Passed = len(c.Faults) == 0; c.Passed {
		r.Passed++
	} else {
		r.Failed++
	}
	r.Cases = append(r.Cases, c)
}

func (c *policyTestCommand) print(p *cli.Process, result *TestResult) error {
	if c.JSON {
		return p.PrintJSON(result)
	}
	for _, problem := range result.Problems {
		fmt.Fprintln(p.Out, problem)
	}
	var rows [][]string
	for _, tested := range result.Cases {
		mark := ledger.CheckFail
		if tested.Passed {
			mark = ledger.CheckPass
		}
		rows = append(rows, []string{cli.CheckMark(mark), tested.Name, tested.Decision, strings.Join(tested.Faults, "; ")})
	}
	if len(rows) > 0 {
		if err := p.PrintTable([]string{"", "CASE", "DECISION", "FAULT"}, rows); err != nil {
			return err
		}
	}
	if len(result.Problems) > 0 {
		fmt.Fprintf(p.Out, "refused: %s\n", cli.Count(len(result.Problems), "problem"))
	}
	fmt.Fprintf(p.Out, "%d passed, %d failed\n", result.Passed, result.Failed)
	return nil
}
