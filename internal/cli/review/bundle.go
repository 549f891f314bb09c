package review

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"

	"countersign/internal/bundle"
	"countersign/internal/cli"
	"countersign/internal/ledger"
)

// BundleCommand is the bundle command.
type BundleCommand struct {
	cli.Remote
	Receipt  string `arg:"" help:"The receipt's id, or its number (CSN-…)."`
	Payloads bool   `help:"Include the payloads of the events." env:"-"`
	Output   string `short:"o" help:"File to write; - for standard output. The default is the receipt's number with .bundle, in the current folder." placeholder:"FILE" env:"-"`
	Force    bool   `help:"Replace an existing file." env:"-"`
	JSON     bool   `name:"json" help:"Print JSON: what was written where." env:"-"`
}

// Help is shown below the flags.
func (BundleCommand) Help() string {
	return `For admins, if the setting evidence_export allows it. The file contains the receipt, its events and approvals, and the
proof that it is in the organization's log.

Example: countersign bundle CSN-2026-00042 --payloads`
}

// Run downloads the evidence of a receipt.
func (c *BundleCommand) Run(p *cli.Process) error {
	if c.JSON && c.Output == "-" {
		return cli.Usage(errors.New("--json needs a file: name one with --output"))
	}
	name, err := cli.ParseReceiptName(c.Receipt)
	if err != nil {
		return cli.Usage(err)
	}
	api, err := c.Connect(p)
	if err != nil {
		return cli.Usage(err)
	}
	path := "/v1/receipts/" + name + "/bundle"
	if c.Payloads {
		path += "?payloads=true"
	}
	data, err := api.Send(p.Ctx, http.MethodGet, path, nil)
	if err != nil {
		return noReceipt(err)
	}
	read, err := readable(data)
	if err != nil {
		return api.UnexpectedAnswer()
	}
	if c.Output == "-" {
		_, err := p.Out.Write(data)
		return err
	}
	file := c.Output
	if file == "" {
		file = read.ReceiptNumber + ".bundle"
	}
	if err := c.write(file, data); err != nil {
		return err
	}
	if c.JSON {
		return p.PrintJSON(struct {
			File          string `json:"file"`
			ReceiptNumber string `json:"receipt_number"`
			Organization  string `json:"organization"`
		}{file, read.ReceiptNumber, read.Organization})
	}
	fmt.Fprintln(p.Out, file)
	p.Notef("Anyone with the key of the organization's log can verify it offline. Send them the key separately from the file:\n"+
		"    countersign log vkey --org %s\n    countersign verify %s --log-key VKEY", cli.OneLine(read.Organization), file)
	return nil
}

// readable parses what the server sent as a bundle. The receipt number becomes a file name, so it
// must be well-formed.
func readable(data []byte) (*bundle.Verdict, error) {
	nothing, err := bundle.NewTrust(bundle.Keys{})
	if err != nil {
		return nil, err
	}
	verdict, err := nothing.Verify(data)
	if err != nil {
		return nil, err
	}
	if _, ok := ledger.ParseReceiptNumber(verdict.ReceiptNumber); !ok {
		return nil, errors.New("the receipt has no number")
	}
	return verdict, nil
}

// write creates a file, or replaces one atomically.
func (c *BundleCommand) write(path string, data []byte) error {
	if !c.Force {
		err := cli.CreateFile(path, data)
		if errors.Is(err, os.ErrExist) {
			return fmt.Errorf("%s already exists: name another file with --output, or replace it with --force", path)
		}
		return err
	}
	file, err := os.CreateTemp(filepath.Dir(path), ".bundle-*") // readable only by its owner, like those of cli.CreateFile
	if err != nil {
		return err
	}
	_, err = file.Write(data)
	if err = errors.Join(err, file.Sync(), file.Close()); err == nil {
		err = os.Rename(file.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(file.Name()))
	}
	return nil
}
