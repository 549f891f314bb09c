package review

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"strconv"

	"countersign/internal/cli"
)

const (
	pageSize  = 200 // entries to request at a time
	maxListed = 10_000
)

// changedOutside replaces the content of an entry that does not verify.
const changedOutside = "CHANGED OUTSIDE THE SERVICE"

// listFlags are the flags of every list command.
type listFlags struct {
	cli.Remote
	Limit int  `help:"How many to list." default:"50" env:"-"`
	JSON  bool `name:"json" help:"Print JSON." env:"-"`
}

// Validate checks the flags. Kong calls it.
func (f *listFlags) Validate() error {
	if f.Limit < 1 || f.Limit > maxListed {
		return errors.New("--limit must be between 1 and " + strconv.Itoa(maxListed))
	}
	return nil
}

// table describes how to print a list of the API.
type table[T any] struct {
	header []string
	row    func(*T) []string
	empty  string // printed if there are no entries
}

// runList implements a list command: it reads a list of the API and prints it.
func runList[T any](p *cli.Process, flags *listFlags, path string, query url.Values, t table[T]) error {
	api, err := flags.Connect(p)
	if err != nil {
		return cli.Usage(err)
	}
	entries, raw, err := readList[T](p.Ctx, api, path, query, flags.Limit)
	if err != nil {
		return err
	}
	if flags.JSON {
		return p.PrintJSON(raw)
	}
	return t.print(p, entries)
}

func (t table[T]) print(p *cli.Process, entries []T) error {
	if len(entries) == 0 {
		p.Notef("%s", t.empty)
		return nil
	}
	rows := make([][]string, len(entries))
	for i := range entries {
		rows[i] = t.row(&entries[i])
	}
	return p.PrintTable(t.header, rows)
}

// readList reads at most limit entries of a list of the API. It also returns the JSON of each
// entry. raw is never nil, so that it prints as a list.
func readList[T any](ctx context.Context, c *cli.Client, path string, query url.Values, limit int) (entries []T, raw []json.RawMessage, err error) {
	raw = []json.RawMessage{}
	query.Set("limit", strconv.Itoa(min(limit, pageSize)))
	for {
		var page struct {
			Data       []json.RawMessage `json:"data"`
			NextCursor *string           `json:"next_cursor"`
		}
		if err := c.Call(ctx, http.MethodGet, path+"?"+query.Encode(), nil, &page); err != nil {
			return nil, nil, err
		}
		for _, text := range page.Data {
			var entry T
			if err := json.Unmarshal(text, &entry); err != nil {
				return nil, nil, cli.Inconclusive(errors.New("the server sent entries that this version cannot read: use the server's version"))
			}
			entries, raw = append(entries, entry), append(raw, text)
		}
		if page.NextCursor == nil || len(entries) >= limit {
			return entries[:min(len(entries), limit)], raw[:min(len(raw), limit)], nil
		}
		query.Set("cursor", *page.NextCursor)
	}
}

// integrityFailed reports whether the server found that an entry does not verify. The server then
// sends only the id.
func integrityFailed(integrity string) bool { return integrity == "failed" }
