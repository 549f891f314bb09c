package witness

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"countersign/internal/cli"
	"countersign/internal/witness"
)

// Commands are the commands of a witness.
type Commands struct {
	Init  witnessInitCommand  `cmd:"" help:"Create a witness: a folder with a new key. Prints the verifier key that logs and verifiers need."`
	VKey  witnessVKeyCommand  `cmd:"" name:"vkey" help:"Print the witness's verifier key."`
	Add   witnessAddCommand   `cmd:"" help:"Register a log by its verifier key, or add another key of a log."`
	List  witnessListCommand  `cmd:"" help:"List the registered logs and the newest cosigned checkpoint of each."`
	Serve witnessServeCommand `cmd:"" help:"Cosign the checkpoints that logs submit, and those of followed logs."`
}

// witnessFolder names the witness. It has its own environment variable.
type witnessFolder struct {
	State string `help:"Folder with the witness's key and state." type:"path" required:"" env:"COUNTERSIGN_WITNESS_STATE" placeholder:"DIR"`
}

type witnessInitCommand struct {
	witnessFolder
	Name string `help:"Name of the key, which identifies the witness to people." required:"" env:"-" placeholder:"NAME"`
}

// Help is shown below the flags.
func (witnessInitCommand) Help() string {
	return "Example: countersign witness init --state ./witness --name witness.example.com/w1"
}

// Run creates a witness.
func (c *witnessInitCommand) Run(p *cli.Process) error {
	vkey, err := witness.Init(c.State, c.Name)
	if err != nil {
		return markInput(err)
	}
	fmt.Fprintln(p.Out, vkey)
	p.Notef("Give this verifier key to the logs and to verifiers. The private key is in %s: anyone who has it can sign as this witness.", c.State)
	return nil
}

type witnessVKeyCommand struct{ witnessFolder }

// Run prints the public key.
func (c *witnessVKeyCommand) Run(p *cli.Process) error {
	vkey, err := witness.VKey(c.State)
	if err != nil {
		return cli.Inconclusive(err)
	}
	fmt.Fprintln(p.Out, vkey)
	return nil
}

type witnessAddCommand struct {
	witnessFolder
	VKey   string `arg:"" name:"vkey" help:"The log's verifier key: <name>+<id>+<key>."`
	Origin string `help:"First line of the log's checkpoints, if it is not the key's name." env:"-" placeholder:"ORIGIN"`
}

// Help is shown below the flags.
func (witnessAddCommand) Help() string {
	return "Stop the witness first if it is running."
}

// Run registers a log.
func (c *witnessAddCommand) Run(p *cli.Process) error {
	origin, err := witness.Add(c.State, c.VKey, c.Origin)
	if err != nil {
		return markInput(err)
	}
	fmt.Fprintln(p.Out, cli.OneLine(origin))
	return nil
}

// markInput makes an error in the input end the program as it does in the commands that only read.
func markInput(err error) error {
	var input *witness.InputError
	if errors.As(err, &input) {
		return cli.Inconclusive(err)
	}
	return err
}

type witnessListCommand struct {
	witnessFolder
	JSON bool `name:"json" help:"Print JSON." env:"-"`
}

// Log is a registered log as printed by witness list.
type Log struct {
	Number     int        `json:"number"` // as in the witness's own log
	Origin     string     `json:"origin"`
	Size       int64      `json:"size"`
	Root       string     `json:"root"`        // base64
	CosignedAt *time.Time `json:"cosigned_at"` // null if nothing was cosigned
	Keys       []string   `json:"keys"`
	Forks      int        `json:"forks"` // number of stored proofs
}

// Run lists the logs.
func (c *witnessListCommand) Run(p *cli.Process) error {
	heads, err := witness.List(c.State)
	if err != nil {
		return cli.Inconclusive(err)
	}
	logs, rows := make([]Log, 0, len(heads)), make([][]string, 0, len(heads))
	for _, head := range heads {
		log := Log{Number: head.Number, Origin: head.Origin, Size: head.Size, Root: head.Root.String(), Keys: head.Keys, Forks: head.Forks}
		at := "never"
		if !head.Time.IsZero() {
			log.CosignedAt = &head.Time
			at = head.Time.Format(time.RFC3339)
		}
		logs = append(logs, log)
		rows = append(rows, []string{strconv.Itoa(head.Number), head.Origin, strconv.FormatInt(head.Size, 10), at, strconv.Itoa(len(head.Keys)), strconv.Itoa(head.Forks)})
	}
	if c.JSON {
		return p.PrintJSON(logs)
	}
	return p.PrintTable([]string{"LOG", "ORIGIN", "SIZE", "COSIGNED", "KEYS", "FORKS"}, rows)
}
