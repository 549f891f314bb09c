package policy

import (
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"

	"countersign/internal/canon"
)

// variable is a top-level name in conditions. Its fields are declared individually, so that a
// misspelt one is found when a set is parsed.
type variable struct {
	name   string
	typed  *types.Type
	fields []field
	index  map[string]int
}

type field struct {
	name  string
	typed *types.Type
	load  func(*Input) ref.Val
	sizes sizes
}

const domainsName = "external_domains"

// The variables, in the order of the documentation.
var (
	actionVariable = newVariable("action",
		text("agent_name", func(in *Input) string { return in.AgentName }),
		text("parent_agent_name", func(in *Input) string { return in.ParentAgentName }),
		text("action_type", func(in *Input) string { return in.ActionType }),
		text("action_name", func(in *Input) string { return in.ActionName }),
		json("payload", func(in *Input) canon.Value { return in.Payload }),
		json("metadata", func(in *Input) canon.Value { return in.Metadata }),
		texts("categories", maxCategories, func(in *Input) []string { return in.Categories }),
		double("amount_usd", func(in *Input) float64 { return in.AmountUSD }),
		field{name: "has_amount", typed: types.BoolType, load: func(in *Input) ref.Val { return types.Bool(in.HasAmount) }},
		texts(domainsName, maxDomains, func(in *Input) []string { return in.ExternalDomains }),
		integer("records_modified", func(in *Input) int64 { return in.RecordsModified }),
	)
	chainVariable = newVariable("chain",
		text("name", func(in *Input) string { return in.ChainName }),
		text("environment", func(in *Input) string { return in.Environment }),
		json("metadata", func(in *Input) canon.Value { return in.ChainMetadata }),
		integer("total_actions", func(in *Input) int64 { return in.TotalActions }),
		double("financial_exposure_usd", func(in *Input) float64 { return in.FinancialExposureUSD }),
		integer("tokens", func(in *Input) int64 { return in.Tokens }),
		double("age_seconds", func(in *Input) float64 { return in.AgeSeconds }),
	)
	orgVariable = newVariable("org",
		text("slug", func(in *Input) string { return in.OrgSlug }),
	)
	variables = []*variable{actionVariable, chainVariable, orgVariable}

	// budgetVariable is the value of budget("name"). Its only field is not read from the Input,
	// because there is one for each name.
	budgetVariable = newVariable("budget",
		field{name: "left", typed: types.DoubleType},
	)
)

func newVariable(name string, fields ...field) *variable {
	v := &variable{name: name, typed: types.NewObjectType(name), fields: fields, index: make(map[string]int)}
	for i := range fields {
		v.index[fields[i].name] = i
	}
	return v
}

func text(name string, get func(*Input) string) field {
	return field{name, types.StringType, func(in *Input) ref.Val { return types.String(get(in)) }, sizes{maxLabel, maxLabel, 1}}
}

func texts(name string, most uint64, get func(*Input) []string) field {
	return field{name, types.NewListType(types.StringType),
		func(in *Input) ref.Val { return types.NewStringList(values, get(in)) }, sizes{usualList, most, maxLabel}}
}

func json(name string, get func(*Input) canon.Value) field {
	return field{name, types.NewMapType(types.StringType, types.DynType),
		func(in *Input) ref.Val { return object(get(in), in.Step) }, sizes{usualEntries, maxInput, 0}}
}

func integer(name string, get func(*Input) int64) field {
	return field{name: name, typed: types.IntType, load: func(in *Input) ref.Val { return types.Int(get(in)) }}
}

func double(name string, get func(*Input) float64) field {
	return field{name: name, typed: types.DoubleType, load: func(in *Input) ref.Val { return types.Double(get(in)) }}
}
