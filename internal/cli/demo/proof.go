package demo

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"

	"countersign/internal/cli"
	"countersign/internal/cli/operate"
	"countersign/internal/ledger"
)

// seal completes the chain and shows its receipt.
func (d *demo) seal(ctx context.Context) error {
	d.begin("The receipt")
	var sealed struct {
		ReceiptID string `json:"receipt_id"`
		Receipt   struct {
			Number    string `json:"receipt_number"`
			Summary   string `json:"summary"`
			Actions   int    `json:"total_actions"`
			Signature string `json:"signature"`
			Metrics   struct {
				Exposure float64 `json:"financial_exposure_usd"`
			} `json:"cumulative_metrics"`
		} `json:"receipt"`
	}
	if err := d.agent.Call(ctx, http.MethodPost, "/v1/chains/"+d.chain+"/complete", nil, &sealed); err != nil {
		return err
	}
	receipt := sealed.Receipt
	if err := expect(receipt.Actions == 5 && receipt.Metrics.Exposure == d.exposure,
		"5 actions and %s in the receipt, but it has %d and %s", cli.Dollars(d.exposure), receipt.Actions, cli.Dollars(receipt.Metrics.Exposure)); err != nil {
		return err
	}
	d.receipt = sealed.ReceiptID
	d.show(green, "✓", "%s  %s", d.paint(bold, receipt.Number), receipt.Summary)
	d.show(green, "✓", "%d actions, %s moved, signed %s…", receipt.Actions, cli.Dollars(receipt.Metrics.Exposure), receipt.Signature[:min(len(receipt.Signature), 24)])
	return nil
}

// share creates a public link and shows what it reveals.
func (d *demo) share(ctx context.Context) error {
	d.begin("What strangers see")
	var token struct {
		Path string `json:"public_path"`
	}
	request := map[string]string{"artifact_type": ledger.ArtifactReceipt, "artifact_id": d.receipt}
	if err := d.admin.Call(ctx, http.MethodPost, "/v1/public-verification-tokens", request, &token); err != nil {
		return err
	}
	d.tell("Anyone with this link can check the receipt, without a key:")
	d.show(cyan, "→", "%s%s", d.address(), token.Path)
	var seen json.RawMessage
	if err := d.client(ledger.Secret{}).Call(ctx, http.MethodGet, token.Path, nil, &seen); err != nil {
		return err
	}
	var pretty bytes.Buffer
	if err := json.Indent(&pretty, seen, "", "  "); err != nil {
		return err
	}
	d.quote(pretty.String() + "\n")
	var result struct {
		Overall string `json:"overall_status"`
	}
	if err := json.Unmarshal(seen, &result); err != nil {
		return err
	}
	return expect(result.Overall == string(ledger.Verified), "strangers to see it verified, but they see %s", result.Overall)
}

// forge changes one byte in a copy of the database and lets the audit find it.
func (d *demo) forge(ctx context.Context) error {
	d.begin("A forgery")
	if err := d.audit(ctx, d.data(), 0, green, "✓"); err != nil {
		return err
	}
	copied := filepath.Join(d.folder, "copy")
	if err := os.Mkdir(copied, 0o700); err != nil {
		return err
	}
	file := filepath.Join(copied, "countersign.db")
	if err := d.server.Backup(ctx, file); err != nil {
		return err
	}
	if err := d.change(ctx, file); err != nil {
		return err
	}
	d.tell("In a copy of the database someone changes one byte of what the agent did:")
	d.show(yellow, "•", "the payment of %s becomes one of %s", cli.Dollars(d.payment), cli.Dollars(d.forged))
	return d.audit(ctx, copied, cli.ExitFailed, red, "✗")
}

// change overwrites the recorded amount, bypassing the program. It uses SQLite, because the file
// may also contain remains of older pages.
func (d *demo) change(ctx context.Context, file string) error {
	amount := func(usd float64) string { return fmt.Sprintf(`"amount_usd":%.0f`, usd) }
	rows, err := d.host.ReplaceInPayloads(ctx, file, amount(d.payment), amount(d.forged))
	if err != nil {
		return err
	}
	return expect(rows == 1, "to forge one action, but it was %d", rows)
}

// audit runs the audit command on a folder and expects an exit code.
func (d *demo) audit(ctx context.Context, folder string, want int, colour, mark string) error {
	var out, errOutput bytes.Buffer
	command := &operate.AuditCommand{Storage: cli.Storage{Data: folder, Keys: filepath.Join(d.data(), "keys.json")}}
	code := cli.Report(&errOutput, command.Run(&cli.Process{Ctx: ctx, In: d.process.In, Out: &out, Err: &errOutput, Databases: d.process.Databases}))
	if err := expect(code == want, "countersign audit to exit with %d, but it exits with %d: %s%s", want, code, out.String(), errOutput.String()); err != nil {
		return err
	}
	d.tell("countersign audit")
	d.show(colour, mark, "%s", strings.TrimSpace(out.String()))
	return nil
}

func (d *demo) epilogue() {
	d.beat(1)
	fmt.Fprintf(d.out, "\n%s\n", d.paint(bold, "That was all: actions decided, a receipt signed and shared, and a forgery detected."))
	d.tell("Next: countersign serve, on a store that is kept.")
}
