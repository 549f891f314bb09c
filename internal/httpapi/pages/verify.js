// Verifies evidence bundles with the browser's own cryptography. It contacts nobody and
// keeps nothing: verifyBundle is a function of the file and of what its reader trusts.
// bundle-format.js and bundle-checks.js come before it.
"use strict";

(() => {
  const {
    canonical,
    cryptography,
    equal,
    hex,
    maxBundle,
    NoBundle,
    object,
    parseBundle,
    parseKey,
    parseProof,
    text,
    TrustError,
    utf8,
  } = globalThis.bundleFormat;
  const { checkNames, makeCheck, plural, readEntries, receiptFormats, verdictOf } = globalThis.bundleChecks;

  const maxCopies = 20; // decisions of one bundle that a link is asked about

  const moment = /^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(\.\d{1,9})?(Z|[+-]\d{2}:\d{2})$/;

  const readTrust = async (crypto, { log_keys = [], witnesses = [], quorum = 0, log_key_revoked_at = null }) => {
    if (!Number.isSafeInteger(quorum) || quorum < 0) {
      throw new TrustError("The number of witnesses that are needed must be 0 or more.");
    }
    const revokedAt = log_key_revoked_at === null ? null : Date.parse(log_key_revoked_at);
    if (revokedAt !== null && (!moment.test(log_key_revoked_at) || Number.isNaN(revokedAt))) {
      throw new TrustError("The time of revocation must look like 2026-11-16T09:30:00Z.");
    }
    const trust = { logKeys: [], witnesses: [], quorum, revokedAt };
    for (const key of log_keys) {
      trust.logKeys.push(await parseKey(crypto, key, false));
    }
    for (const key of witnesses) {
      const witness = await parseKey(crypto, key, true);
      if (trust.witnesses.some((other) => equal(other.key, witness.key))) {
        throw new TrustError(`The witness ${witness.name} is given twice.`);
      }
      trust.witnesses.push(witness);
    }
    if (quorum > trust.witnesses.length) {
      throw new TrustError(`${plural(quorum, "witness", "witnesses")} cannot be reached: ${trust.witnesses.length} are given.`);
    }
    if (revokedAt !== null && trust.witnesses.length === 0) {
      throw new TrustError("A revoked log key counts only where witnesses saw the log before: give their keys.");
    }
    return trust;
  };

  // verifyBundle judges a file. bytes is a Uint8Array. trust holds what its reader got from
  // elsewhere: log_keys, witnesses, quorum and log_key_revoked_at, all optional; a
  // TypeError with isTrust says what is wrong with it. The answer has
  //
  //   verdict    verified, failed, indeterminate, or no_bundle: then problem says why
  //   checks     every check in its order: name, status (pass, fail, not_checked), reason
  //   receipt    what the receipt says, proven or not; null where it cannot be read
  //   signatures whether the browser can check Ed25519 signatures
  //
  // subtle is the browser's cryptography; null or undefined where the page has none.
  const verifyBundle = async (bytes, trust = {}, subtle = globalThis.crypto?.subtle) => {
    let bundle;
    try {
      bundle = parseBundle(bytes);
    } catch (error) {
      if (error instanceof NoBundle) {
        return { verdict: "no_bundle", problem: error.message, checks: [], receipt: null, signatures: false };
      }
      throw error;
    }
    const receipt = object(bundle.receipt);
    if (!subtle) {
      const reason = "this browser offers no cryptography to this page";
      const none = checkNames.map((name) => ({ name, status: "not_checked", reason }));
      return { verdict: "indeterminate", problem: null, checks: none, receipt, signatures: false };
    }
    const crypto = await cryptography(subtle);
    const trusted = await readTrust(crypto, trust);
    const given = {
      crypto,
      bundle,
      receipt,
      receiptHash: "sha256:" + hex(await crypto.sha256(utf8.encode(bundle.receipt))),
      proof: parseProof(bundle.log_proof),
      trust: trusted,
      entries: bundle.entries === null ? null : readEntries({ bundle, receipt }),
    };
    const results = [];
    for (const name of checkNames) {
      results.push(await makeCheck(name, given));
    }
    return {
      verdict: verdictOf(results, trusted.quorum),
      problem: null,
      checks: results,
      receipt,
      signatures: crypto.ed25519,
    };
  };

  // hashesOfCopy gives the hashes by which a public link may know what is in a file: a receipt
  // or a decision record, alone or in a bundle. artifact is what the link is about, receipt or
  // approval. A TypeError with isTrust says why there are none.
  const hashesOfCopy = async (bytes, artifact, subtle = globalThis.crypto?.subtle) => {
    if (!subtle) {
      throw new TrustError("This browser offers no cryptography to this page. Enter the copy’s hash instead.");
    }
    if (bytes.length > maxBundle) {
      throw new TrustError("The file is larger than 64 MiB.");
    }
    let written = "";
    try {
      written = new TextDecoder("utf-8", { fatal: true }).decode(bytes);
    } catch {
      // It is no text, and no object either.
    }
    const copy = object(written);
    const hashOf = async (text) => "sha256:" + hex(await (await cryptography(subtle)).sha256(utf8.encode(text)));
    if (copy?.format === "countersign-bundle-v1") {
      let bundle;
      try {
        bundle = parseBundle(bytes);
      } catch (error) {
        throw new TrustError(`This evidence file cannot be read: ${error.message}.`);
      }
      const texts = artifact === "receipt" ? [bundle.receipt] : (bundle.approvals ?? []).map(({ record }) => record);
      if (texts.length === 0) {
        throw new TrustError("There is no decision in this evidence file, and the link is about one.");
      }
      return await Promise.all(texts.slice(0, maxCopies).map(hashOf));
    }
    const kind = receiptFormats.includes(copy?.format)
      ? "receipt"
      : text(copy?.approval_id) && text(copy?.payload_sha256)
        ? "approval"
        : "";
    if (kind === "") {
      throw new TrustError("This file is no receipt, no decision record and no evidence file, as the service writes them.");
    }
    if (kind !== artifact) {
      throw new TrustError(
        `This file is ${kind === "receipt" ? "a receipt" : "a decision record"}, and the link is about something else.`,
      );
    }
    // Another program may have set it in lines: what was signed is the canonical form.
    return [await hashOf(canonical(copy))];
  };

  globalThis.verifyBundle = verifyBundle;
  globalThis.hashesOfCopy = hashesOfCopy;
})();
