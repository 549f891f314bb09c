package policy

import (
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"countersign/internal/cli"
	"countersign/internal/policy"
	"countersign/internal/service"
)

// Commands are the commands for policy sets.
type Commands struct {
	Check    policyCheckCommand    `cmd:"" help:"Compile a policy set and list its rules, or its problems (exit 1)."`
	Simulate policySimulateCommand `cmd:"" help:"Decide recorded events again with a policy set, and show what would change."`
	Put      policyPutCommand      `cmd:"" help:"Put a policy set in force, starting with the next action."`
	Test     policyTestCommand     `cmd:"" help:"Decide test cases with a policy set (exit 1 if a decision is not as expected)."`
}

type policyCheckCommand struct {
	File string `arg:"" help:"The policy set, YAML or JSON." type:"path"`
	JSON bool   `name:"json" help:"Print JSON." env:"-"`
}

// CheckResult is the result of a check.
type CheckResult struct {
	File     string          `json:"file"`
	Valid    bool            `json:"valid"`
	Hash     string          `json:"hash,omitempty"` // as it appears in versions
	FastPath bool            `json:"fast_path"`
	Rules    []ruleLine      `json:"rules,omitempty"`
	Problems []policyProblem `json:"problems,omitempty"`
}

type ruleLine struct {
	Name      string   `json:"name"`
	Decision  string   `json:"decision"`
	Mode      string   `json:"mode"`
	Approvers []string `json:"approvers,omitempty"`
}

type policyProblem struct {
	File   string `json:"file"`
	Line   int    `json:"line"`
	Column int    `json:"column"`
	Rule   string `json:"rule,omitempty"`
	Detail string `json:"detail"`
}

func (p policyProblem) String() string {
	rule := ""
	if p.Rule != "" {
		rule = p.Rule + ": "
	}
	return fmt.Sprintf("%s:%d:%d: %s%s", p.File, p.Line, p.Column, rule, p.Detail)
}

// Run compiles the set like the server.
func (c *policyCheckCommand) Run(p *cli.Process) error {
	text, err := readPolicyFile(c.File)
	if err != nil {
		return cli.Inconclusive(err)
	}
	set, problems, err := parsePolicy(c.File, text)
	if err != nil {
		return cli.Inconclusive(err)
	}
	result := CheckResult{File: c.File, Valid: set != nil, Problems: problems}
	if set != nil {
		result.describe(set)
	}
	if err := c.print(p, &result); err != nil || result.Valid {
		return err
	}
	return &cli.ExitError{Code: cli.ExitFailed}
}

func (r *CheckResult) describe(set *policy.Set) {
	hash := set.Hash()
	r.Hash = hex.EncodeToString(hash[:])[:12]
	r.FastPath, _ = set.FastPath()
	r.Rules = []ruleLine{}
	for _, rule := range set.Rules() {
		r.Rules = append(r.Rules, ruleLine{rule.Name, rule.Decision, rule.Mode, rule.Approvers})
	}
}

func (c *policyCheckCommand) print(p *cli.Process, result *CheckResult) error {
	if c.JSON {
		return p.PrintJSON(result)
	}
	if !result.Valid {
		for _, problem := range result.Problems {
			fmt.Fprintln(p.Out, problem)
		}
		fmt.Fprintf(p.Out, "refused: %s\n", cli.Count(len(result.Problems), "problem"))
		return nil
	}
	rows := make([][]string, len(result.Rules))
	for i, rule := range result.Rules {
		rows[i] = []string{rule.Name, rule.Decision, rule.Mode, strings.Join(rule.Approvers, ", ")}
	}
	if len(rows) > 0 {
		if err := p.PrintTable([]string{"RULE", "DECISION", "MODE", "APPROVERS"}, rows); err != nil {
			return err
		}
	}
	fmt.Fprintf(p.Out, "ok: %s; its version will be v<N>+%s\n", cli.Count(len(rows), "rule"), result.Hash)
	return nil
}

// maxPolicyFile is larger than the limit of a set, so that the parser's error names the limit.
const maxPolicyFile = 4 << 20

func readPolicyFile(path string) ([]byte, error) {
	file, err := os.Open(path) //nolint:gosec // the operator names the file
	if err != nil {
		return nil, err
	}
	defer file.Close()
	data, err := cli.ReadBounded(file, maxPolicyFile)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return data, nil
}

// documentOf determines the format from the file's name. The default is YAML.
func documentOf(path string, text []byte) *service.PolicyDocument {
	return &service.PolicyDocument{Text: text, YAML: !strings.EqualFold(filepath.Ext(path), ".json")}
}

// parsePolicy compiles a set, or returns its problems with their places.
func parsePolicy(path string, text []byte) (*policy.Set, []policyProblem, error) {
	format := policy.JSON
	if documentOf(path, text).YAML {
		format = policy.YAML
	}
	set, err := policy.Parse(text, format)
	problems, err := problemsOf(path, err)
	return set, problems, err
}

// problemsOf extracts the problems from an error that has them.
func problemsOf(path string, err error) ([]policyProblem, error) {
	var refused *policy.Error
	if !errors.As(err, &refused) {
		return nil, err
	}
	problems := make([]policyProblem, len(refused.Problems))
	for i, problem := range refused.Problems {
		problems[i] = policyProblem{path, problem.Line, problem.Column, problem.Rule, problem.Detail}
	}
	return problems, nil
}
