package cli

import (
	"fmt"
	"slices"
	"strings"

	"countersign/internal/verify"
)

// AnyUnremembered reports whether the heads file does not know the receipts of the
// database.
func AnyUnremembered(found []verify.Rollback) bool {
	return slices.ContainsFunc(found, func(r verify.Rollback) bool { return r.Unremembered })
}

func acknowledged(n int64) string {
	if n == 1 {
		return "1 receipt was acknowledged"
	}
	return Count(n, "receipt") + " were acknowledged"
}

// RollbackText describes a rollback.
func RollbackText(r verify.Rollback) string {
	switch {
	case r.OtherLedger:
		return "the heads file is about another ledger than the one in this database"
	case r.Unremembered:
		return fmt.Sprintf("%s has %s, and the heads file does not know which were acknowledged", Quoted(r.Organization, MaxSlug), Count(r.Stored, "receipt"))
	case r.Missing:
		return fmt.Sprintf("of %s (%s) %s, but the database does not contain that organization", Quoted(r.Organization, MaxSlug), r.ID, acknowledged(r.Acknowledged))
	case r.OnlyActs() && r.ActsAcknowledged <= r.ActsStored:
		return fmt.Sprintf("the audit log of %s has %s, but not those that were acknowledged", Quoted(r.Organization, MaxSlug), Count(r.ActsStored, "act"))
	case r.OnlyActs():
		return fmt.Sprintf("of %s %s were acknowledged, but its audit log in the database has only %d", Quoted(r.Organization, MaxSlug), Count(r.ActsAcknowledged, "act"), r.ActsStored)
	case r.Acknowledged <= r.Stored:
		return fmt.Sprintf("the ledger of %s has %s, but not those that were acknowledged", Quoted(r.Organization, MaxSlug), Count(r.Stored, "receipt"))
	}
	return fmt.Sprintf("of %s %s, but the database has only %d", Quoted(r.Organization, MaxSlug), acknowledged(r.Acknowledged), r.Stored)
}

// RollbackTexts describes the first few rollbacks: a restored database may affect many
// organizations.
func RollbackTexts(found []verify.Rollback) string { return firstFew(found, RollbackText) }

// ChainTexts describes the first few chains that were rolled back.
func ChainTexts(found []*verify.ChainRollback) string {
	return firstFew(found, (*verify.ChainRollback).String)
}

func firstFew[T any](found []T, text func(T) string) string {
	const shown = 3
	var texts []string
	for _, one := range found[:min(shown, len(found))] {
		texts = append(texts, text(one))
	}
	if more := len(found) - shown; more > 0 {
		texts = append(texts, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(texts, "; ")
}

// RollbackRemedy returns what to do about rollbacks.
func RollbackRemedy(found []verify.Rollback) string {
	if AnyUnremembered(found) {
		return "import the heads of another machine with countersign heads import, restore the heads file, or, if this database is the newest, run countersign rollback accept"
	}
	return "find the newer database, or, if this one was restored on purpose, run countersign rollback accept"
}
