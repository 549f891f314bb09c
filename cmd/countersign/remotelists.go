package main

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"strconv"
)

const pageSize = 200 // entries that are asked for at a time

// readList reads the entries of a list of the API, at most so many, each also as the text
// that it came in.
func readList[T any](ctx context.Context, c *apiClient, path string, query url.Values, most int) (list []T, raw []json.RawMessage, err error) {
	query.Set("limit", strconv.Itoa(min(most, pageSize)))
	for {
		var page struct {
			Data       []json.RawMessage `json:"data"`
			NextCursor *string           `json:"next_cursor"`
		}
		if err := c.call(ctx, http.MethodGet, path+"?"+query.Encode(), nil, &page); err != nil {
			return nil, nil, err
		}
		for _, text := range page.Data {
			var entry T
			if err := json.Unmarshal(text, &entry); err != nil {
				return nil, nil, unclear(errors.New("the server sends entries that this version cannot read: use the server's version"))
			}
			list, raw = append(list, entry), append(raw, text)
		}
		if page.NextCursor == nil || len(list) >= most {
			return list[:min(len(list), most)], raw[:min(len(raw), most)], nil
		}
		query.Set("cursor", *page.NextCursor)
	}
}

// printList prints a list as JSON, as a table, or says that it is empty.
func (p *process) printList(asJSON bool, raw []json.RawMessage, none string, header []string, rows [][]string) error {
	switch {
	case asJSON && raw == nil:
		return p.printJSON([]json.RawMessage{})
	case asJSON:
		return p.printJSON(raw)
	case len(rows) == 0:
		p.say("%s", none)
		return nil
	}
	return p.printTable(header, rows)
}

// changedOutside stands for what an entry said that does not verify.
const changedOutside = "CHANGED OUTSIDE THE SERVICE"

// listFlags are of every command that lists over the API.
type listFlags struct {
	remote
	Limit int  `help:"How many to list, newest first." default:"50" env:"-"`
	JSON  bool `name:"json" help:"Print JSON." env:"-"`
}

const mostListed = 10_000

// Validate implements kong's check of a command.
func (f *listFlags) Validate() error {
	if f.Limit < 1 || f.Limit > mostListed {
		return errors.New("--limit must be between 1 and " + strconv.Itoa(mostListed))
	}
	return nil
}
