package policy

import (
	"slices"
	"sync"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/ext"
)

// environment is the language of conditions, created once and shared.
var environment = sync.OnceValue(func() *cel.Env {
	registry, err := types.NewRegistry()
	if err != nil {
		panic("policy: " + err.Error())
	}
	options := []cel.EnvOption{
		cel.CustomTypeAdapter(values),
		cel.CustomTypeProvider(provider{registry}),
		cel.CrossTypeNumericComparisons(true),
		cel.CostModelVersion(costModel),
		cel.ParserExpressionSizeLimit(maxCondition),
		cel.ParserRecursionLimit(maxDepth),
		cel.ExpressionNodeLimit(maxNodes),
		cel.RegexProgramSizeLimit(maxPattern),
		cel.ASTValidators(cel.ValidateRegexLiterals(), cel.ValidateDurationLiterals(), cel.ValidateTimestampLiterals()),
		ext.Strings(ext.StringsVersion(5)),
		ext.Sets(ext.SetsVersion(1)),
	}
	for _, v := range variables {
		options = append(options, cel.Variable(v.name, v.typed))
	}
	options = append(options, cel.Variable(budgetsName, types.NewMapType(types.StringType, budgetVariable.typed)), cel.Macros(budgetMacro))
	env, err := cel.NewEnv(options...)
	if err != nil {
		panic("policy: " + err.Error())
	}
	initialize(env)
	return env
})

// initialize makes the library write now what it would otherwise write on first use, from any
// goroutine: the list of known names for "did you mean", which scopes copy without a lock, and the
// position in the shared "no such overload" error, which would point into another rule's condition.
func initialize(env *cel.Env) {
	if _, issues := env.Compile("undeclared"); issues.Err() == nil {
		panic("policy: an undeclared name was accepted")
	}
	types.LabelErrNode(noPosition, types.NoSuchOverloadErr())
}

// noPosition is the position of an error that has none.
const noPosition = -1

// provider adds the types of the variables to those of the language.
type provider struct {
	*types.Registry
}

// FindStructType implements types.Provider.
func (p provider) FindStructType(name string) (*types.Type, bool) {
	if v := variableOf(name); v != nil {
		return types.NewTypeTypeWithParam(v.typed), true
	}
	return p.Registry.FindStructType(name)
}

// FindStructFieldNames implements types.Provider.
func (p provider) FindStructFieldNames(name string) ([]string, bool) {
	v := variableOf(name)
	if v == nil {
		return p.Registry.FindStructFieldNames(name)
	}
	var names []string
	for i := range v.fields {
		names = append(names, v.fields[i].name)
	}
	return names, true
}

// FindStructFieldType implements types.Provider.
func (p provider) FindStructFieldType(name, field string) (*types.FieldType, bool) {
	v := variableOf(name)
	if v == nil {
		return p.Registry.FindStructFieldType(name, field)
	}
	i, found := v.index[field]
	if !found {
		return nil, false
	}
	if v == budgetVariable {
		return &types.FieldType{
			Type:    v.fields[i].typed,
			IsSet:   func(any) bool { return true },
			GetFrom: func(target any) (any, error) { return target.(*budgetLeft).get() },
		}, true
	}
	return &types.FieldType{
		Type:    v.fields[i].typed,
		IsSet:   func(target any) bool { return target.(*record).has(i) },
		GetFrom: func(target any) (any, error) { return target.(*record).at(i), nil },
	}, true
}

// variableOf returns the variable with the type name, or nil.
func variableOf(typeName string) *variable {
	if typeName == budgetVariable.typed.TypeName() {
		return budgetVariable
	}
	i := slices.IndexFunc(variables, func(v *variable) bool { return v.typed.TypeName() == typeName })
	if i < 0 {
		return nil
	}
	return variables[i]
}
