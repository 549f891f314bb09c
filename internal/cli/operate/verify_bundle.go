package operate

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"countersign/internal/anchor"
	"countersign/internal/bundle"
	"countersign/internal/cli"
	"countersign/internal/ledger"
)

// bundleFlags are the keys and certificates that the verifier of a bundle trusts.
type bundleFlags struct {
	LogKey    []string `name:"log-key" help:"Key of the organization's log, as printed by countersign log vkey; without one no bundle verifies. Repeat it during a rotation." placeholder:"VKEY" env:"-" sep:"none"`
	Witness   []string `name:"witness" help:"Key of a witness that may have cosigned the log; repeat it for several." placeholder:"VKEY" env:"-" sep:"none"`
	Quorum    int      `name:"quorum" help:"How many of the witnesses must have cosigned; at least one if any is given." placeholder:"N" env:"-"`
	RevokedAt *string  `name:"log-key-revoked-at" help:"When the log key was revoked; what witnesses saw or anchors prove earlier still counts." placeholder:"TIME" env:"-"`
	TSARoots  string   `name:"tsa-roots" help:"PEM file of certificates for verifying RFC 3161 anchors." type:"path" placeholder:"FILE" env:"-"`
	Headers   string   `name:"bitcoin-headers" help:"File of Bitcoin block headers (file:PATH) for verifying OpenTimestamps anchors." placeholder:"SOURCE" env:"-"`
}

// verifyBundle verifies a file without opening a store or contacting a server.
func (c *VerifyCommand) verifyBundle(p *cli.Process, path string) error {
	trust, err := c.trust(p.Ctx)
	if err != nil {
		return cli.Usage(err)
	}
	data, err := readBundle(path)
	if err != nil {
		return cli.Inconclusive(err)
	}
	verdict, err := trust.Verify(data)
	if err != nil {
		return cli.Inconclusive(fmt.Errorf("%s: %w", path, err))
	}
	if err := c.printBundle(p, verdict); err != nil {
		return err
	}
	switch verdict.Status {
	case bundle.Verified:
		return nil
	case bundle.Failed:
		return &cli.ExitError{Code: cli.ExitFailed}
	}
	if len(c.LogKey) == 0 {
		return cli.Inconclusive(errors.New("no log key was given: get it from the organization (countersign log vkey prints it) and pass it with --log-key"))
	}
	return &cli.ExitError{Code: cli.ExitInconclusive}
}

func (f *bundleFlags) trust(ctx context.Context) (*bundle.Trust, error) {
	keys := bundle.Keys{Log: f.LogKey, Witnesses: f.Witness, Quorum: f.Quorum}
	if f.RevokedAt != nil {
		at, err := bundle.ParseTime(*f.RevokedAt)
		if err != nil {
			return nil, fmt.Errorf("--log-key-revoked-at: %w", err)
		}
		keys.RevokedAt = &at
		if len(f.Witness) == 0 && f.TSARoots == "" && f.Headers == "" {
			return nil, errors.New("--log-key-revoked-at: the key counts only where witnesses saw the checkpoint before, or the receipt was anchored before: give --witness, --tsa-roots or --bitcoin-headers")
		}
	}
	judge, err := f.anchors(ctx)
	if err != nil {
		return nil, err
	}
	keys.Anchors = judge
	return bundle.NewTrust(keys)
}

// blockTimeError is how much earlier than its making a block may be dated.
const blockTimeError = 2 * time.Hour

// anchors returns a judge of timestamp proofs for the given roots and headers. It leaves other
// proofs unchecked.
func (f *bundleFlags) anchors(ctx context.Context) (bundle.AnchorJudge, error) {
	var roots *anchor.Trust
	if f.TSARoots != "" {
		_, trust, err := ReadTSARoots(f.TSARoots)
		if err != nil {
			return nil, err
		}
		roots = trust
	}
	var bitcoin anchor.Bitcoin
	if f.Headers != "" {
		if !strings.HasPrefix(f.Headers, "file:") {
			return nil, errors.New("--bitcoin-headers: a bundle is verified offline: give a file, file:PATH")
		}
		source, err := anchor.ParseHeaderSource(f.Headers)
		if err != nil {
			return nil, fmt.Errorf("--bitcoin-headers: %w", err)
		}
		bitcoin.Headers = source
	}
	return func(method string, digest [32]byte, proof []byte) bundle.Judgement {
		switch {
		case method == ledger.MethodTSA && roots != nil:
			stamped, err := anchor.VerifyToken(proof, digest, roots, 0)
			if err != nil {
				return bundle.Judgement{Status: bundle.Fail, Detail: err.Error()}
			}
			return bundle.Judgement{Status: bundle.Pass, By: stamped.By}
		case method == ledger.MethodOpenTimestamps && bitcoin.Headers != nil:
			verdict, err := bitcoin.Verify(ctx, proof, digest)
			switch {
			case err != nil:
				return bundle.Judgement{Status: bundle.NotChecked, Detail: err.Error()}
			case verdict.Status == anchor.Verified:
				return bundle.Judgement{Status: bundle.Pass, By: verdict.BlockTime.Add(blockTimeError)}
			case verdict.Status == anchor.Failed:
				return bundle.Judgement{Status: bundle.Fail, Detail: string(verdict.Reason)}
			}
			return bundle.Judgement{Status: bundle.NotChecked, Detail: "the proof is not in a block yet"}
		}
		return bundle.Judgement{Status: bundle.NotChecked, Detail: fmt.Sprintf("no roots for %s were given (--tsa-roots, --bitcoin-headers)", method)}
	}, nil
}

func readBundle(path string) ([]byte, error) {
	file, err := os.Open(path) //nolint:gosec // the user names the file
	if err != nil {
		return nil, err
	}
	defer file.Close()
	data, err := cli.ReadBounded(file, bundle.MaxSize)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return data, nil
}

func (c *VerifyCommand) printBundle(p *cli.Process, verdict *bundle.Verdict) error {
	if c.JSON {
		return p.PrintJSON(verdict)
	}
	fmt.Fprintf(p.Out, "%s  receipt %s of organization %s, made %s\n", strings.ToUpper(verdict.Status),
		cli.OneLine(verdict.ReceiptNumber), cli.OneLine(verdict.Organization), cli.OneLine(verdict.GeneratedAt))
	for _, check := range verdict.Checks {
		status := ledger.CheckStatus(check.Status)
		fmt.Fprintf(p.Out, "  %s %-20s %s\n", cli.CheckMark(status), check.Name, remark(status, cli.OneLine(check.Detail)))
	}
	return nil
}

// isFile reports whether an argument names an existing file.
func isFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && !info.IsDir()
}

// ReadTSARoots reads the certificates for verifying tokens, including those of authorities that are
// no longer used.
func ReadTSARoots(path string) ([]byte, *anchor.Trust, error) {
	file, err := os.Open(path) //nolint:gosec // the operator names the file
	if err != nil {
		return nil, nil, fmt.Errorf("--tsa-roots: %w", err)
	}
	defer file.Close()
	roots, err := cli.ReadBounded(file, maxRoots)
	if err != nil {
		return nil, nil, fmt.Errorf("--tsa-roots: %s: %w", path, err)
	}
	trust, err := anchor.ParseTrust(roots)
	if err != nil {
		return nil, nil, fmt.Errorf("--tsa-roots: %w", err)
	}
	return roots, trust, nil
}

const maxRoots = 1 << 20
