package evidence_test

import (
	"database/sql"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"countersign/internal/ledger"
	"countersign/internal/store"
	"countersign/internal/store/storetest"
	"countersign/internal/testdb"
)

// covered says, for each table, what authenticates its columns. Changing one of them gains an
// attacker nothing, because the row is then refused.
var covered = map[string]struct{ by, columns string }{
	"organizations": {"the authenticator in controls, and the hash at the end of the audit log, checked where an organization is used", "id slug name settings controls created_at"},
	"api_keys": {"mac, checked here", `id org_id name role hash hint created_at revoked_at agents owner sign_in_as slack_member expires_at expiry_logged
		previous_hash previous_expires_at act mac`},
	"key_rotations": {"mac, checked here", "org_id idempotency_key key_id overlap rotated_at mac"},
	"sign_ins":      {"mac, checked here", "hash key_id org_id expires_at kind session sign_in_as act mac"},
	"webhooks":      {"mac, checked here", "id org_id url events description secret created_at disabled_at deleted_at act mac"},
	"policies":      {"mac, checked here", "org_id number version format document created_at created_by act mac"},
	"tokens": {"mac, checked here", `id org_id hash artifact artifact_id idempotency_key created_at expires_at revoked_at revocation_reason
		act mac`},
	"signing_keys": {"mac, checked here", "org_id id public private status name created_at retired_at revoked_at act mac"},
	"anchors":      {"mac, checked here", "org_id kind subject_id sequence method digest status reason proof block updated_at mac"},
	"findings": {"mac, checked here", `org_id name failed_check kind subject evidence found_at seen_at acknowledged_at acknowledged_by
		reason mac`},
	"imported_approvals": {"mac, checked here", "id org_id import_id key_id record signature imported_at act mac"},
	"webhook_deliveries": {"mac, checked here", `id org_id webhook_id message_id kind cause attempt state code error_class error attempted_at
		duration notice mac`},
	"transparency_logs": {"mac, checked here", "id org_id origin opened_at closed_at mac"},
	"log_checkpoints":   {"the signatures in note and cosignatures; the others are compared with note", "log_id kind size root note cosignatures"},
	"log_tiles":         {"the root of the signed checkpoint, to which the hashes lead where a tile is used", "log_id level number hashes"},
	"full_checks":       {"mac, checked here", "org_id receipt_id receipt_hash failed checked_at mac"},
	"ledger_identity":   {"mac, checked here", "id parent_id created_at mac"},
	"jobs":              {"mac, checked here", "org_id kind stream body due_at mac"},
	"job_names":         {"the authenticator in the name, checked here", "org_id name"},
	"heads":             {"mac, checked where a head is used", "org_id count last_hash key_id mac"},
	"act_logs":          {"mac, checked where the log's end is used", "org_id count last_hash controls mac"},
	"acts":              {"the hash chain that act_logs ends", "org_id sequence body"},
	"chains": {"body is covered by the mac of chain_states, the others are compared with it", `id org_id opened_by external_id environment
		idempotency_key body`},
	"chain_states": {"mac, checked where a state is decoded", "chain_no chain_id org_id status state mac"},
	"events": {"mac, and the digest in the chain's state", `chain_no chain_id sequence idempotency_key body payload redactions
		mac`},
	"addenda":         {"the digest in the chain's state, checked where anything is concluded from them", "chain_no chain_id position sequence body"},
	"budget_counters": {"mac, checked where a counter is decoded; the others are compared with body", "id org_id budget window_start value body mac"},
	"approvals":       {"mac, checked where an approval is decoded", "id org_id chain_id sequence opened_by requested_at status body mac"},
	"receipts":        {"the receipt's own signature, and the hash chain that heads ends", "id org_id sequence chain_id previous_hash body"},
}

// idle lists the columns that carry no authority, each with the reason.
var idle = map[string]string{
	"api_keys.last_used_at":      "nothing is decided by when a key was last used",
	"tokens.last_used_at":        "nothing is decided by when a token was last used",
	"chain_polls.chain_no":       "a poll only decides when an abandoned chain is sealed",
	"chain_polls.chain_id":       "as chain_no",
	"chain_polls.polled_at":      "as chain_no",
	"approval_polls.approval_id": "reviewers are shown when a client last asked; nothing is decided by it",
	"approval_polls.polled_at":   "as approval_id",
	"postings.term":              "it proposes records, which are authenticated and matched against the search: an attacker can only hide one from a search",
	"postings.place":             "as term",
	"postings.sequence":          "as term",
	"receipt_postings.term":      "as postings.term",
	"receipt_postings.block":     "as postings.term",
	"receipt_postings.receipts":  "as postings.term",

	"legacy_uses.org_id":      "operators and admins are shown how often legacy routes were used; nothing is decided by it",
	"legacy_uses.day":         "as org_id",
	"legacy_uses.route":       "as org_id",
	"legacy_uses.requests":    "as org_id",
	"master_keys.key_id":      "a changed fingerprint only keeps the server from starting",
	"master_keys.fingerprint": "as key_id",

	"jobs.no":           "it only identifies a row",
	"jobs.run_at":       "it only schedules a stored job: a job can be delayed",
	"jobs.place":        "internal to the store: a job can be delayed or given up",
	"jobs.held":         "as place",
	"jobs.buried":       "as place",
	"jobs.attempts":     "as place",
	"jobs.lease":        "as place",
	"jobs.leased_until": "as place",
	"jobs.fault":        "it is shown to operators",

	"log_signer.no":     "it limits the table to one row",
	"log_signer.holder": "every signer signs the same tree: signing can be delayed",
	"log_signer.until":  "as holder",

	"ledger_identity.no": "it limits the table to one row",

	"chains.no":   "it joins a chain with its rows, which name and cover the chain",
	"events.no":   "it only identifies a row",
	"receipts.no": "it only identifies a row",
	"anchors.no":  "it only identifies a row",
}

// bookkeeping lists the tables of the migrations and of SQLite itself.
var bookkeeping = []string{"goose_db_version", "schema_versions", "sqlite_sequence"}

// Every column of the schema is covered by an authenticator, a hash or a signature, or is listed
// with the reason why it carries no authority. A new column that is in neither list fails this
// test.
func TestEveryColumnIsAccountedFor(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		query := `SELECT m.name, c.name FROM sqlite_schema m JOIN pragma_table_info(m.name) c WHERE m.type = 'table'`
		if db.Kind == "postgres" {
			query = `SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = current_schema()`
		}
		db.Open(t)
		found := columnsOf(t, db.Direct(t), query)
		if len(found) < 100 {
			t.Fatalf("only %d columns were found", len(found))
		}
		for _, name := range found {
			table, column, _ := strings.Cut(name, ".")
			if slices.Contains(bookkeeping, table) {
				continue
			}
			isCovered := slices.Contains(strings.Fields(covered[table].columns), column)
			if _, isIdle := idle[name]; isCovered == isIdle {
				t.Errorf("%s: covered %t, without authority %t; want exactly one", name, isCovered, isIdle)
			}
		}
	})
}

// Every listed column exists in the schema of at least one of the two stores.
func TestNoColumnIsListedForNothing(t *testing.T) {
	t.Parallel()
	lite, full := testdb.SQLite(t), testdb.Postgres(t)
	lite.Open(t)
	full.Open(t)
	found := append(columnsOf(t, lite.Direct(t), `SELECT m.name, c.name FROM sqlite_schema m JOIN pragma_table_info(m.name) c WHERE m.type = 'table'`),
		columnsOf(t, full.Direct(t), `SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = current_schema()`)...)
	for name := range idle {
		if !slices.Contains(found, name) {
			t.Errorf("%s is listed but is not a column", name)
		}
	}
	for table, c := range covered {
		for _, column := range strings.Fields(c.columns) {
			if !slices.Contains(found, table+"."+column) {
				t.Errorf("%s.%s is listed but is not a column", table, column)
			}
		}
	}
}

// A span is stored as its number of milliseconds. A stored number that is too large for a Duration
// is not read as the original, which the authenticator covers.
func TestSpansAreStoredInMilliseconds(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		port, direct := db.Open(t), db.Direct(t)
		storetest.Fill(t, port)
		keys := keysOf(t, port)
		rotation := &store.RotationRecord{Org: keys[0].Org, Key: keys[0].ID, IdempotencyKey: "once", Overlap: 90 * time.Second}
		ref := store.RotationRef{Org: rotation.Org, Key: rotation.IdempotencyKey}
		delivery := &store.DeliveryRecord{ID: ledger.DeliveryID{UUID: uuid.New()}, Org: rotation.Org, Duration: 1234 * time.Millisecond}
		if err := port.AddDelivery(t.Context(), delivery, 9, 0); err != nil {
			t.Fatal(err)
		}
		var read store.RotationRecord
		transact := func(changes *store.Changes) {
			t.Helper()
			err := port.Transact(t.Context(), &store.Needs{Rotations: []store.RotationRef{ref}}, func(loaded *store.Loaded) (*store.Changes, error) {
				if found := loaded.Rotations[ref]; found != nil {
					read = *found
				}
				return changes, nil
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		transact(&store.Changes{NewRotations: []*store.RotationRecord{rotation}})
		var overlap, duration int64
		err := errors.Join(direct.QueryRowContext(t.Context(), "SELECT overlap FROM key_rotations").Scan(&overlap),
			direct.QueryRowContext(t.Context(), "SELECT duration FROM webhook_deliveries").Scan(&duration))
		if err != nil || overlap != 90_000 || duration != 1234 {
			t.Errorf("stored: an overlap of %d and a duration of %d, %v", overlap, duration, err)
		}
		for _, statement := range []string{"UPDATE key_rotations SET overlap = overlap + 288230376151711744", "UPDATE webhook_deliveries SET duration = duration + 288230376151711744"} { // 2 to the power of 58
			if _, err := direct.ExecContext(t.Context(), statement); err != nil {
				t.Fatal(err)
			}
		}
		transact(&store.Changes{})
		changed, err := port.Delivery(t.Context(), delivery.ID)
		if err != nil || changed.Duration == delivery.Duration || read.Overlap == rotation.Overlap {
			t.Errorf("read after a change: an overlap of %v and a duration of %v, %v", read.Overlap, changed.Duration, err)
		}
	})
}

// keysOf returns the keys of the only organization.
func keysOf(t *testing.T, port store.Store) []*ledger.KeyRecord {
	t.Helper()
	organizations, err := port.Organizations(t.Context())
	if err != nil || len(organizations) != 1 {
		t.Fatalf("%d organizations, %v", len(organizations), err)
	}
	keys, err := port.Keys(t.Context(), organizations[0].ID, ledger.KeyID{}, 9)
	if err != nil || len(keys) == 0 {
		t.Fatalf("%d keys, %v", len(keys), err)
	}
	return keys
}

func columnsOf(t *testing.T, direct *sql.DB, query string) (columns []string) {
	t.Helper()
	rows, err := direct.QueryContext(t.Context(), query)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		var table, column string
		if err := rows.Scan(&table, &column); err != nil {
			t.Fatal(err)
		}
		columns = append(columns, table+"."+column)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return columns
}
