package classify

import "strings"

type wordKind uint8

const (
	wordNone wordKind = iota
	// wordRead as the first word of a name says that the rest is only read.
	wordRead
	// wordConnective joins a second verb to the first: check_and_pay.
	wordConnective
	// wordAct is a verb and counts anywhere.
	wordAct
	// wordThing is a noun, or a verb that reads like one: get_payment, list_emails and check_update
	// read it but do not do it.
	wordThing
	// wordTransfer is about money as the last word (wire_transfer), but not in transfer_to_agent,
	// which hands over a conversation, or in transfer_file.
	wordTransfer
)

type word struct {
	kind       wordKind
	categories categorySet
}

// words are the meaningful words of action names. Only whole words match: pay is not found in
// payload.
var words = vocabulary()

func vocabulary() map[string]word {
	known := map[string]word{}
	list := func(kind wordKind, categories categorySet, text string) {
		for _, w := range strings.Fields(text) {
			known[w] = word{kind, categories}
		}
	}
	list(wordRead, 0, `analyse analyze calculate can check compare count describe estimate explain fetch find get has inspect
		is list look lookup preview query read retrieve search show summarise summarize validate verify view`)
	list(wordConnective, 0, `and or then`)
	list(wordTransfer, 0, `transfer transfers`)

	list(wordAct, financial, `buy disburse donate pay reimburse remit sell spend withdraw`)
	list(wordThing, financial, `bill bills charge charges debit deposit deposits disbursement disbursements donation donations
		funds invoice invoices money payment payments payout payouts payroll purchase purchases refund refunds
		reimbursement reimbursements remittance remittances trade trades wire withdrawal withdrawals`)

	list(wordAct, externalCommunication, `broadcast browse crawl notify publish reply scrape send tweet upload`)
	list(wordThing, externalCommunication, `curl discord email emails fax gmail http https invite mail mails message messages mms
		newsletter newsletters notification notifications share slack smtp sms telegram twitter webhook webhooks whatsapp`)

	list(wordAct, dataModification, `add alter append create deactivate delete destroy disable edit erase insert migrate modify
		overwrite purge remove rename replace restore revoke save truncate upsert wipe write`)
	list(wordThing, dataModification, `archive deletion deletions drop grant import imports merge modification modifications move
		patch reset update updates`)

	list(wordThing, llm, `gpt llm llms`)
	return known
}
