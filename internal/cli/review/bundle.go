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
	Output   string `short:"o" help:"File to write; - for standard output. Without it, the receipt's number and .bundle, in this folder." placeholder:"FILE" env:"-"`
	Force    bool   `help:"Replace a file that is there." env:"-"`
}

// Help is shown below the flags.
func (BundleCommand) Help() string {
	return `For admins, where the setting evidence_export allows it. The file holds the receipt, its events and approvals, and the
proof that it is in the organization's log.

Example: countersign bundle CSN-2026-00042 --payloads`
}

// Run downloads the evidence of a receipt.
func (c *BundleCommand) Run(p *cli.Process) error {
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
	fmt.Fprintln(p.Out, file)
	p.Notef("Whoever has the key of the organization's log can verify it offline. Send them the key by another way than the file:\n"+
		"    countersign log vkey --org %s\n    countersign verify %s --log-key VKEY", cli.OneLine(read.Organization), file)
	return nil
}

// readable reads what a server sent as a bundle. Its number becomes the name of a file, so it
// has to be one.
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

// write writes a new file, or replaces one whole.
func (c *BundleCommand) write(path string, data []byte) error {
	if !c.Force {
		err := cli.CreateFile(path, data)
		if errors.Is(err, os.ErrExist) {
			return fmt.Errorf("%s exists already: name another file with --output, or replace it with --force", path)
		}
		return err
	}
	file, err := os.CreateTemp(filepath.Dir(path), ".bundle-*") // for its owner alone, as createFile makes them
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
