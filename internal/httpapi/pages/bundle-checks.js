// The checks of an evidence bundle. Each is a function of the bundle and of what its reader trusts. It
// returns a description of what passed, or throws Failure or NotChecked with the reason.
"use strict";

globalThis.bundleChecks = (() => {
  const { concat, cosignedAt, equal, fromBase64, hex, isObject, NotChecked, object, parseNote, rootOf, signedByLog, text, utf8 } =
    globalThis.bundleFormat;

  const hashesAtATime = 100;

  const checkNames = [
    "receipt_hash",
    "events_digest",
    "payload_hashes",
    "approval_records",
    "approval_signatures",
    "inclusion",
    "checkpoint_signature",
    "witnesses",
    "anchors",
    "receipt_signature",
  ];

  // Failure is thrown by a check that fails.
  class Failure extends Error {}

  const plural = (n, one, many = one + "s") => `${n} ${n === 1 ? one : many}`;

  const receiptFormats = ["countersign-receipt-v1", "countersign-receipt-v2"];

  const checkReceiptHash = ({ bundle, receipt, receiptHash, proof }) => {
    if (receipt === null) {
      throw new Failure("the receipt cannot be read");
    }
    if (!receiptFormats.includes(receipt.format)) {
      throw new Failure("this page does not know the receipt’s format; a newer version may");
    }
    if (bundle.receipt_hash !== receiptHash) {
      throw new Failure("the receipt does not match the hash in the file");
    }
    const number = text(receipt.receipt_number) ? receipt.receipt_number.split("-").at(-1) : "";
    if (proof.index === undefined || number !== String(proof.index + 1n).padStart(5, "0")) {
      throw new Failure("the receipt’s number does not match its place in the log");
    }
    return "the receipt’s hash and number match its entry in the log";
  };

  // readEntries parses the bodies of the entries. It returns null if one of them is not an entry of the
  // receipt's chain or is out of order.
  const readEntries = ({ bundle, receipt }) => {
    const read = [];
    let sequence = 0;
    for (const entry of bundle.entries) {
      const body = object(entry.body);
      if (body === null) {
        return null;
      }
      const event = !Object.hasOwn(body, "kind");
      if (event) {
        sequence++;
        if (!text(body.chain_id) || body.chain_id !== receipt?.chain_id || body.sequence !== sequence) {
          return null;
        }
      } else if (entry.payload !== null || entry.redactions !== null) {
        return null; // only events have them
      }
      read.push({ ...entry, event, facts: body });
    }
    return read;
  };

  // isAction reports whether an entry counts as an action. Receipts of the first format count every
  // event.
  const isAction = (receipt) => (entry) =>
    entry.event && (receipt.format === "countersign-receipt-v1" || !["gap", "late_outcome"].includes(entry.facts.action_type));

  const checkEvents = async ({ crypto, bundle, receipt, entries }) => {
    if (bundle.entries === null) {
      throw new NotChecked("the events are not included");
    }
    if (receipt === null) {
      throw new Failure("the receipt cannot be read");
    }
    if (entries === null) {
      throw new Failure("an entry does not belong to this receipt, or is out of order");
    }
    let digest = await crypto.sha256(new Uint8Array(0));
    for (const entry of entries) {
      digest = await crypto.sha256(concat(digest, utf8.encode(entry.body)));
    }
    if (receipt.events_digest !== "sha256:" + hex(digest)) {
      throw new Failure("the events do not match the receipt: one was changed, added, moved or removed");
    }
    const actions = entries.filter(isAction(receipt)).length;
    if (receipt.total_actions !== actions) {
      throw new Failure(`there are ${plural(actions, "action")}, but the receipt counts another number`);
    }
    return `all ${plural(entries.length, "entry", "entries")} of the record match the receipt`;
  };

  const checkPayloads = async ({ crypto, bundle, entries }) => {
    if (bundle.entries === null) {
      throw new NotChecked("the events are not included");
    }
    if (entries === null) {
      throw new NotChecked("the events could not be read");
    }
    const events = entries.filter(({ event }) => event);
    const is = async (written, hash) => written === null || hex(await crypto.sha256(utf8.encode(written))) === hash;
    // Hash in batches, because each digest is a round trip to another thread of the browser.
    for (let from = 0; from < events.length; from += hashesAtATime) {
      await Promise.all(
        events.slice(from, from + hashesAtATime).map(async ({ facts, payload, redactions }) => {
          if (!(await is(payload, facts.payload_sha256))) {
            throw new Failure(`the payload of event ${facts.sequence} does not match its recorded hash`);
          }
          if (!(await is(redactions, facts.redactions_sha256))) {
            throw new Failure(`the redactions of event ${facts.sequence} do not match their recorded hash`);
          }
        }),
      );
    }
    const payloads = events.filter(({ payload }) => payload !== null).length;
    if (payloads === 0 && events.length > 0) {
      throw new NotChecked("no payloads are included");
    }
    return `${payloads} of ${plural(events.length, "payload")} included, each with its recorded hash`;
  };

  // approvalsOf returns the decisions that the receipt names, or null if they cannot be read.
  const approvalsOf = (receipt) => {
    const named = receipt?.approvals;
    return Array.isArray(named) && named.every(isObject) ? named : null;
  };

  const checkApprovalRecords = async ({ crypto, bundle, receipt }) => {
    if (bundle.approvals === null) {
      throw new NotChecked("the decisions are not included");
    }
    const wanted = approvalsOf(receipt);
    if (wanted === null) {
      throw new Failure("the decisions that the receipt names cannot be read");
    }
    if (wanted.length !== bundle.approvals.length) {
      throw new Failure(`the receipt names ${plural(wanted.length, "decision")}, but the file has ${bundle.approvals.length}`);
    }
    for (const [i, approval] of bundle.approvals.entries()) {
      const record = object(approval.record);
      const hash = "sha256:" + hex(await crypto.sha256(utf8.encode(approval.record)));
      if (
        record === null ||
        !text(record.approval_id) ||
        record.approval_id !== wanted[i].approval_id ||
        !text(record.status) ||
        record.status !== wanted[i].status ||
        hash !== wanted[i].approval_hash
      ) {
        throw new Failure(`decision ${i + 1} does not match the receipt`);
      }
    }
    return wanted.length === 0 ? "no decision was needed" : `${plural(wanted.length, "decision")}, as listed in the receipt`;
  };

  // readRegistry returns the signed list of the reviewers' keys: its note, and the keys by id.
  const readRegistry = ({ bundle, proof }) => {
    const note = bundle.signing_keys === null ? null : parseNote(bundle.signing_keys);
    const lines = note?.text.split("\n") ?? [];
    if (lines.length !== 4 || lines[0] !== "countersign-signing-keys-v1") {
      throw new Failure("the list of reviewers’ keys cannot be read");
    }
    if (!proof.checkpoint || lines[1] !== proof.checkpoint.origin) {
      throw new Failure("the list of reviewers’ keys belongs to another log");
    }
    const listed = object(lines[2])?.keys;
    if (!Array.isArray(listed)) {
      throw new Failure("the list of reviewers’ keys cannot be read");
    }
    const keys = new Map();
    for (const element of listed) {
      const { key_id: id, public_key: encoded } = isObject(element) ? element : {};
      const key = text(encoded) ? fromBase64(encoded) : null;
      if (!text(id) || id === "" || keys.has(id) || key?.length !== 32) {
        throw new Failure("the list of reviewers’ keys cannot be read");
      }
      keys.set(id, key);
    }
    return { note, keys };
  };

  const checkApprovalSignatures = async (given) => {
    const { crypto, bundle, proof, trust } = given;
    if (bundle.approvals === null) {
      throw new NotChecked("the decisions are not included");
    }
    const { note, keys } = readRegistry(given);
    let signatures = 0;
    let unsupported = null; // set if the browser has no Ed25519; other failures must still be found
    const judge = async (judged) => {
      try {
        return await judged;
      } catch (error) {
        if (!(error instanceof NotChecked)) {
          throw error;
        }
        unsupported = error;
        return true;
      }
    };
    if (trust.logKeys.length > 0 && !(await judge(signedByLog(crypto, note, proof.checkpoint.origin, trust.logKeys)))) {
      throw new Failure("the list of reviewers’ keys is not signed with the log key that you entered");
    }
    for (const [i, approval] of bundle.approvals.entries()) {
      if (approval.signature === null && approval.key_id === null && object(approval.record)?.status === "cancelled") {
        continue;
      }
      const signature = approval.signature === null ? null : fromBase64(approval.signature);
      const key = keys.get(approval.key_id);
      if (
        signature === null ||
        key === undefined ||
        !(await judge(crypto.signed(key, utf8.encode(approval.record), signature)))
      ) {
        throw new Failure(`decision ${i + 1} is not signed with a key on the list`);
      }
      signatures++;
    }
    if (signatures === 0) {
      throw new NotChecked("there are no signed decisions");
    }
    if (trust.logKeys.length === 0) {
      throw new NotChecked("no log key was entered, so nothing vouches for the reviewers’ keys");
    }
    if (trust.revokedAt !== null) {
      // Witnesses cosign the log’s state. Whoever has stolen the key can sign a list at any time.
      throw new NotChecked("the log key was revoked, and nothing shows that the list of reviewers’ keys is older");
    }
    if (unsupported) {
      throw unsupported;
    }
    return `${plural(signatures, "signature")} by reviewers, with keys that the log key vouches for`;
  };

  const unreadable = "the log’s proof cannot be read";

  const checkInclusion = async ({ crypto, bundle, proof }) => {
    if (!proof.checkpoint) {
      throw new Failure(unreadable);
    }
    const { size, root } = proof.checkpoint;
    const leaf = await crypto.sha256(concat(Uint8Array.of(0), utf8.encode(bundle.receipt)));
    const reached = await rootOf(crypto, leaf, proof.index, size, proof.hashes);
    if (reached === null || !equal(reached, root)) {
      throw new Failure("the log does not contain this receipt at this position");
    }
    return `the log of ${plural(Number(size), "receipt")} contains exactly this receipt`;
  };

  // cosignatures returns the times at which the trusted witnesses cosigned, in seconds.
  const cosignatures = async ({ crypto, proof, trust }) => {
    const times = [];
    for (const witness of trust.witnesses) {
      const time = await cosignedAt(crypto, proof.checkpoint.note, witness);
      if (time !== null) {
        times.push(time);
      }
    }
    return times;
  };

  const checkCheckpoint = async (given) => {
    const { crypto, proof, trust } = given;
    if (trust.logKeys.length === 0) {
      throw new NotChecked("no log key was entered");
    }
    if (!proof.checkpoint) {
      throw new Failure(unreadable);
    }
    const { note, origin } = proof.checkpoint;
    if (!(await signedByLog(crypto, note, origin, trust.logKeys))) {
      throw new Failure("the log’s state is not signed with the log key that you entered");
    }
    if (trust.revokedAt === null) {
      return "the log’s state is signed with the log key that you entered";
    }
    const before = (await cosignatures(given)).filter((time) => time < trust.revokedAt).length;
    if (before < Math.max(trust.quorum, 1)) {
      throw new Failure("the log key was revoked, and too few witnesses saw this state before then");
    }
    return `the log’s state is signed with the log key that you entered, and ${plural(before, "witness", "witnesses")} saw it before that key was revoked`;
  };

  const checkWitnesses = async (given) => {
    const { proof, trust } = given;
    if (trust.witnesses.length === 0) {
      throw new NotChecked("no witnesses were named");
    }
    if (!proof.checkpoint) {
      throw new Failure(unreadable);
    }
    const seen = (await cosignatures(given)).length;
    const result = `seen by ${seen} of ${plural(trust.witnesses.length, "witness", "witnesses")}`;
    if (seen < Math.max(trust.quorum, 1)) {
      throw new Failure(`${result}, but ${Math.max(trust.quorum, 1)} ${trust.quorum > 1 ? "are" : "is"} required`);
    }
    return result;
  };

  const checkAnchors = ({ bundle, receipt, receiptHash }) => {
    if (bundle.anchors.length === 0) {
      throw new NotChecked("there are none");
    }
    const digests = new Map([["receipt", receiptHash]]);
    for (const { approval_id: id, approval_hash: hash } of approvalsOf(receipt) ?? []) {
      if (!digests.has(id)) {
        digests.set(id, hash);
      }
    }
    for (const { digest, proof, subject } of bundle.anchors) {
      if (digest !== digests.get(subject) || !/^sha256:[0-9a-f]{64}$/.test(digest)) {
        throw new Failure("a proof of time is for something else");
      }
      if (fromBase64(proof) === null) {
        throw new Failure("a proof of time cannot be read");
      }
    }
    throw new NotChecked(`${plural(bundle.anchors.length, "proof")} of time included, which this page cannot verify`);
  };

  const checkReceiptSignature = () => {
    throw new NotChecked("only the service can check its own seal; the log covers it");
  };

  const checks = {
    receipt_hash: checkReceiptHash,
    events_digest: checkEvents,
    payload_hashes: checkPayloads,
    approval_records: checkApprovalRecords,
    approval_signatures: checkApprovalSignatures,
    inclusion: checkInclusion,
    checkpoint_signature: checkCheckpoint,
    witnesses: checkWitnesses,
    anchors: checkAnchors,
    receipt_signature: checkReceiptSignature,
  };

  const makeCheck = async (name, given) => {
    try {
      return { name, status: "pass", reason: await checks[name](given) };
    } catch (error) {
      if (error instanceof Failure) {
        return { name, status: "fail", reason: error.message };
      }
      if (error instanceof NotChecked) {
        return { name, status: "not_checked", reason: error.message };
      }
      throw error;
    }
  };

  const verdictOf = (results, quorum) => {
    if (results.some(({ status }) => status === "fail")) {
      return "failed";
    }
    const needed = ["receipt_hash", "inclusion", "checkpoint_signature", ...(quorum > 0 ? ["witnesses"] : [])];
    const passed = (name) => results.some((result) => result.name === name && result.status === "pass");
    return needed.every(passed) ? "verified" : "indeterminate";
  };

  return { checkNames, makeCheck, plural, readEntries, receiptFormats, verdictOf };
})();
