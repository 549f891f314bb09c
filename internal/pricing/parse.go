package pricing

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/shopspring/decimal"

	"countersign/internal/canon"
)

// Bounds of a price file.
const (
	maxFile   = 1 << 20 // bytes
	maxModels = 2000
	maxNames  = 50  // a model's, with its aliases
	maxName   = 200 // bytes
	maxPrice  = 12  // characters: up to 999999.99999
	maxTokens = 1_000_000_000_000
)

// Parse reads a price file (docs/pricing.md). It refuses a file with anything that
// it does not know: a price that was misread would be worse than none.
func Parse(data []byte) (*Table, error) {
	if len(data) > maxFile {
		return nil, fmt.Errorf("the price file has %d bytes; the limit is %d", len(data), maxFile)
	}
	v, err := canon.Parse(data)
	if err != nil {
		return nil, fmt.Errorf("the price file is not strict JSON: %w", err)
	}
	if err := known(v, "effective", "currency", "models"); err != nil {
		return nil, err
	}
	table := &Table{effective: text(v, "effective"), prices: map[string]price{}}
	if withoutDate("x-"+table.effective) != "x" || len(table.effective) != len("YYYY-MM-DD") {
		return nil, errors.New("effective must be the date of the prices, YYYY-MM-DD")
	}
	if text(v, "currency") != "USD" {
		return nil, errors.New(`currency must be "USD": costs are kept in US dollars`)
	}
	models, _ := v.Get("models")
	if n := len(models.Items()); n == 0 || n > maxModels {
		return nil, fmt.Errorf("models must be a list of 1 to %d models", maxModels)
	}
	for i, model := range models.Items() {
		if err := table.add(model); err != nil {
			return nil, fmt.Errorf("models[%d]: %w", i, err)
		}
	}
	return table, nil
}

// known refuses anything but an object with these members alone.
func known(v canon.Value, names ...string) error {
	if v.Kind() != canon.Object {
		return errors.New("must be an object")
	}
	for _, member := range v.Members() {
		if !slices.Contains(names, member.Name) {
			return fmt.Errorf("%q is not known; remove it", member.Name)
		}
	}
	return nil
}

func text(v canon.Value, name string) string {
	member, _ := v.Get(name)
	return member.Str()
}

func (t *Table) add(v canon.Value) error {
	if err := known(v, "model", "provider", "aliases", "input_per_million", "output_per_million", "max_input_tokens"); err != nil {
		return err
	}
	p, err := readPrice(v)
	if err != nil {
		return err
	}
	names, err := readNames(v)
	if err != nil {
		return err
	}
	provider, given := v.Get("provider")
	if given && !isName(provider.Str()) {
		return errors.New("provider must be a name in lower case")
	}
	for _, name := range names {
		if err := t.list(name, p); err != nil {
			return err
		}
		if !given {
			continue
		}
		if err := t.list(provider.Str()+"/"+name, p); err != nil {
			return err
		}
	}
	return nil
}

func (t *Table) list(name string, p price) error {
	if _, taken := t.prices[name]; taken {
		return fmt.Errorf("%q is listed twice", name)
	}
	t.prices[name] = p
	return nil
}

func readNames(v canon.Value) ([]string, error) {
	names := []string{text(v, "model")}
	aliases, given := v.Get("aliases")
	if given && aliases.Kind() != canon.Array || len(aliases.Items()) >= maxNames {
		return nil, fmt.Errorf("aliases must be a list of fewer than %d names", maxNames)
	}
	for _, alias := range aliases.Items() {
		names = append(names, alias.Str())
	}
	for _, name := range names {
		if !isName(name) {
			return nil, fmt.Errorf("%q must be a name of a model, in lower case and at most %d bytes", name, maxName)
		}
	}
	return names, nil
}

// isName asks for the spelling under which names are looked up.
func isName(name string) bool {
	return name != "" && len(name) <= maxName && name == strings.ToLower(strings.TrimSpace(name))
}

func readPrice(v canon.Value) (price, error) {
	input, err := readDecimal(v, "input_per_million")
	if err != nil {
		return price{}, err
	}
	output, err := readDecimal(v, "output_per_million")
	if err != nil {
		return price{}, err
	}
	p := price{input: input, output: output}
	if limit, given := v.Get("max_input_tokens"); given {
		n, whole := limit.Int()
		if !whole || n < 1 || n > maxTokens {
			return price{}, fmt.Errorf("max_input_tokens must be a whole number from 1 to %d", int64(maxTokens))
		}
		p.maxInput = n
	}
	return p, nil
}

// readDecimal takes plain decimals in quotes: a JSON number may be a double that
// only looks like the price.
func readDecimal(v canon.Value, name string) (decimal.Decimal, error) {
	digits := text(v, name)
	if len(digits) > maxPrice || strings.Trim(digits, "0123456789.") != "" {
		digits = "" // an exponent could stand for any number of digits
	}
	amount, err := decimal.NewFromString(digits)
	if err != nil {
		return decimal.Decimal{}, fmt.Errorf(`%s must be dollars as a plain decimal in quotes, such as "2.50"`, name)
	}
	return amount, nil
}
