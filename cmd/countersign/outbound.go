package main

import (
	"fmt"
	"net/url"
	"os"

	"countersign/internal/cli"
	"countersign/internal/pricing"
	"countersign/internal/tlog"
)

// prices reads the operator's price table, or returns nil if there is none.
func (c *serveCommand) prices() (*pricing.Table, error) {
	if c.Prices == "" {
		return nil, nil
	}
	file, err := os.Open(c.Prices)
	if err != nil {
		return nil, fmt.Errorf("--prices: %w", err)
	}
	defer file.Close()
	data, err := cli.ReadBounded(file, maxPrices)
	if err != nil {
		return nil, fmt.Errorf("--prices: %s: %w", c.Prices, err)
	}
	table, err := pricing.Parse(data)
	if err != nil {
		return nil, fmt.Errorf("--prices: %s: %w", c.Prices, err)
	}
	return table, nil
}

const maxPrices = 1 << 20

// defaultInstance is the name of an instance without a name or a public URL.
const defaultInstance = "countersign"

// instanceName returns the name that the origins of new logs begin with.
func instanceName(given, publicURL string) (string, error) {
	if given != "" {
		if err := tlog.CheckInstanceName(given); err != nil {
			return "", fmt.Errorf("--instance-name: %w", err)
		}
		return given, nil
	}
	if address, err := url.Parse(publicURL); err == nil && tlog.CheckInstanceName(address.Host) == nil {
		return address.Host, nil
	}
	return defaultInstance, nil
}
