// Verifies evidence bundles with WebCrypto. It makes no connections and stores nothing: verifyBundle
// is a function of the file and of what its reader trusts. bundle-format.js and bundle-checks.js must
// come before it.
"use strict";

(() => {
  const { canonical, cryptography, equal, hex, NoBundle, object, parseBundle, parseKey, parseProof, text, TrustError, utf8 } =
    globalThis.bundleFormat;
  const { checkNames, makeCheck, plural, readEntries, receiptFormats, verdictOf } = globalThis.bundleChecks;

  const moment = /^((?!0000)\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2})(\.\d{1,9})?(Z|[+-]\d{2}:\d{2})$/;

  // parseMoment returns a time in seconds, or null if there is no such time. A fraction is dropped,
  // because cosignatures have none.
  const parseMoment = (written) => {
    const [, day, , zone] = moment.exec(written) ?? [];
    const local = Date.parse(day + "Z");
    const time = Date.parse(day + zone);
    // A browser takes 30 February for 2 March.
    const exists = !Number.isNaN(local) && !Number.isNaN(time) && new Date(local).toISOString().startsWith(day);
    return exists ? time / 1000 : null;
  };

  const readTrust = async (crypto, { log_keys = [], witnesses = [], quorum = 0, log_key_revoked_at = null }) => {
    if (!Number.isSafeInteger(quorum) || quorum < 0) {
      throw new TrustError("The number of required witnesses must be 0 or more.");
    }
    const revokedAt = log_key_revoked_at === null ? null : parseMoment(log_key_revoked_at);
    if (log_key_revoked_at !== null && revokedAt === null) {
      throw new TrustError("The time of revocation must look like 2026-11-16T09:30:00Z.");
    }
    const trust = { logKeys: [], witnesses: [], quorum, revokedAt };
    for (const key of log_keys) {
      trust.logKeys.push(await parseKey(crypto, key, false));
    }
    for (const key of witnesses) {
      const witness = await parseKey(crypto, key, true);
      if (trust.witnesses.some((other) => equal(other.key, witness.key))) {
        throw new TrustError(`The witness ${witness.name} is listed twice.`);
      }
      trust.witnesses.push(witness);
    }
    if (quorum > trust.witnesses.length) {
      throw new TrustError(`You require ${plural(quorum, "witness", "witnesses")} but named ${trust.witnesses.length}.`);
    }
    if (revokedAt !== null && trust.witnesses.length === 0) {
      throw new TrustError("A revoked log key counts only if witnesses saw the log before it was revoked: enter their keys.");
    }
    return trust;
  };

  // verifyBundle verifies a file. bytes is a Uint8Array. trust is what the reader got from elsewhere:
  // log_keys, witnesses, quorum and log_key_revoked_at, all optional. If trust is invalid, verifyBundle
  // throws a TypeError with isTrust and a message for the reader. The result has
  //
  //   verdict    verified, failed, indeterminate or no_bundle
  //   problem    why the file is not a bundle; otherwise null
  //   checks     all checks in order: name, status (pass, fail, not_checked), reason
  //   receipt    the content of the receipt, proven or not; null if it cannot be read
  //   signatures whether the browser can check Ed25519 signatures
  //
  // subtle is WebCrypto, or null or undefined if the page may not use it.
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
      const reason = "this browser does not let this page use cryptography";
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

  // hashesOfCopy returns the hashes to compare with a public link. The file is a receipt or a decision
  // record, alone or in a bundle. artifact is what the link is about: receipt or approval. If there is
  // nothing to compare, hashesOfCopy throws a TypeError with isTrust and a message for the reader.
  const hashesOfCopy = async (bytes, artifact, subtle = globalThis.crypto?.subtle) => {
    if (!subtle) {
      throw new TrustError("This browser does not let this page use cryptography. Enter the copy’s hash instead.");
    }
    let written = "";
    try {
      written = new TextDecoder("utf-8", { fatal: true }).decode(bytes);
    } catch {
      // A file that is not text is not a JSON object either.
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
        throw new TrustError("This evidence file contains no decision, but the link is about one.");
      }
      return await Promise.all(texts.map(hashOf));
    }
    const kind = receiptFormats.includes(copy?.format)
      ? "receipt"
      : text(copy?.approval_id) && text(copy?.payload_sha256)
        ? "approval"
        : "";
    if (kind === "") {
      throw new TrustError("This file is not a receipt, a decision record or an evidence file from the service.");
    }
    if (kind !== artifact) {
      throw new TrustError(
        `This file is ${kind === "receipt" ? "a receipt" : "a decision record"}, but the link is about something else.`,
      );
    }
    // Another program may have reformatted the file. The hash is of the canonical form.
    return [await hashOf(canonical(copy))];
  };

  globalThis.verifyBundle = verifyBundle;
  globalThis.hashesOfCopy = hashesOfCopy;
})();
