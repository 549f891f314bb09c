// Parses evidence bundles (docs/bundles.md): bytes, strict JSON, signed notes and the log's proof. This
// is the first of three scripts that together verify a bundle. The server concatenates them in this
// order: bundle-format.js, bundle-checks.js, verify.js. They share no code with the service, because
// they exist to check it.
"use strict";

globalThis.bundleFormat = (() => {
  const maxBundle = 64 * 1024 * 1024; // bytes
  const maxSignatures = 100; // of one note
  const maxDepth = 64; // of nested arrays and objects
  const maxProof = 63; // hashes
  const maxCount = 2n ** 62n; // entries of a log
  const maxTime = 253402300799n; // the end of the year 9999, in seconds

  // NoBundle is thrown for a file that is not a bundle at all, so that there is nothing to check.
  class NoBundle extends Error {}

  // TrustError is thrown for invalid input of the reader, such as a malformed key.
  class TrustError extends TypeError {
    isTrust = true;
  }

  // NotChecked is thrown by a check that cannot be made.
  class NotChecked extends Error {}

  const utf8 = new TextEncoder();

  // --- bytes -----------------------------------------------------------------------

  const concat = (...parts) => {
    const whole = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0));
    let at = 0;
    for (const part of parts) {
      whole.set(part, at);
      at += part.length;
    }
    return whole;
  };

  const equal = (a, b) => a.length === b.length && a.every((byte, i) => byte === b[i]);

  const hex = (data) => Array.from(data, (byte) => byte.toString(16).padStart(2, "0")).join("");

  // fromBase64 accepts only canonical base64. It returns null for anything else.
  const fromBase64 = (text) => {
    if (!/^[A-Za-z0-9+/]*={0,2}$/.test(text) || text.length % 4 !== 0) {
      return null;
    }
    const binary = atob(text);
    return btoa(binary) === text ? Uint8Array.from(binary, (c) => c.charCodeAt(0)) : null;
  };

  // --- WebCrypto -------------------------------------------------------------------

  // The first test vector of RFC 8032, section 7.1: the signature of the empty message.
  const knownKey = "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a";
  const knownSignature =
    "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b";
  const fromHex = (text) => Uint8Array.from(text.match(/../g), (pair) => Number.parseInt(pair, 16));

  // The points of small order of Ed25519's curve, in all their encodings, without the sign of x. Anyone
  // can make signatures for such a key. Libraries and browsers disagree on whether one verifies, and
  // also on a signature that begins with such a point, so a bundle has neither.
  const smallOrder = new Set([
    "0000000000000000000000000000000000000000000000000000000000000000",
    "0100000000000000000000000000000000000000000000000000000000000000",
    "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
    "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
    "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
  ]);
  const isSmallOrder = (point) => smallOrder.has(hex(point.subarray(0, 31)) + hex([point[31] & 0x7f]));

  // cryptography wraps WebCrypto. ed25519 is false if the browser does not support it.
  const cryptography = async (subtle) => {
    const sha256 = async (data) => new Uint8Array(await subtle.digest("SHA-256", data));
    const verify = async (key, message, signature) => {
      const imported = await subtle.importKey("raw", key, { name: "Ed25519" }, false, ["verify"]);
      return await subtle.verify({ name: "Ed25519" }, imported, signature, message);
    };
    let ed25519 = false;
    try {
      ed25519 = await verify(fromHex(knownKey), new Uint8Array(0), fromHex(knownSignature));
    } catch {
      // Ed25519 is not supported.
    }
    const signed = async (key, message, signature) => {
      if (!ed25519) {
        throw new NotChecked("this browser cannot check Ed25519 signatures; a newer one can");
      }
      if (signature.length !== 64 || isSmallOrder(key) || isSmallOrder(signature)) {
        return false;
      }
      try {
        return await verify(key, message, signature);
      } catch {
        return false; // the key is not a point on the curve
      }
    };
    return { ed25519, sha256, signed };
  };

  // --- JSON ------------------------------------------------------------------------

  // canonical encodes a parsed value according to RFC 8785, which defines strings and numbers as
  // JSON.stringify formats them, and the order of names as sort does.
  const canonical = (value) => {
    if (Array.isArray(value)) {
      return "[" + value.map(canonical).join(",") + "]";
    }
    if (value !== null && typeof value === "object") {
      const names = Object.keys(value).sort();
      return "{" + names.map((name) => JSON.stringify(name) + ":" + canonical(value[name])).join(",") + "}";
    }
    return JSON.stringify(value);
  };

  const isObject = (value) => value !== null && typeof value === "object" && !Array.isArray(value);

  // exact normalizes a decimal number, so that all spellings of one value are equal: the digits without
  // leading and trailing zeros, and the exponent. It takes time in proportion to the text.
  const exact = (written) => {
    const [, sign, whole, fraction = "", power = "0"] = /^(-?)(\d+)(?:\.(\d+))?(?:[eE]([+-]?\d+))?$/.exec(written);
    const digits = (whole + fraction).replace(/^0+/, "");
    let end = digits.length;
    while (digits[end - 1] === "0") {
      end--; // replacing /0+$/ would begin anew at every zero
    }
    // An exponent that a double cannot hold exactly is never that of a finite number other than 0.
    const exponent = Number(power) - fraction.length + digits.length - end;
    return end === 0 ? "0" : `${sign}${digits.slice(0, end)}e${exponent}`;
  };

  // stringEnd returns the position behind the string that begins at a position of a JSON text.
  const stringEnd = (written, begin) => {
    let at = begin + 1;
    while (written[at] !== '"') {
      at += written[at] === "\\" ? 2 : 1;
    }
    return at + 1;
  };

  // hasOneReading reports whether all parsers must agree on a text that JSON.parse accepts: no duplicate
  // names in an object, no lone surrogates, no numbers that a double cannot represent, and no deep
  // nesting. Strings are not matched with a regular expression, because long ones exhaust its stack.
  const hasOneReading = (written) => {
    const token = /["{}[\]]|-?\d[\d.eE+-]*/g;
    const colon = /\s*:/y;
    const open = []; // for each enclosing object its names so far, for each array null
    for (let found = token.exec(written); found !== null; found = token.exec(written)) {
      const [part] = found;
      if (part === "{" || part === "[") {
        open.push(part === "{" ? new Set() : null);
        if (open.length > maxDepth) {
          return false;
        }
      } else if (part === "}" || part === "]") {
        open.pop();
      } else if (part === '"') {
        token.lastIndex = stringEnd(written, found.index);
        const string = JSON.parse(written.slice(found.index, token.lastIndex));
        if (/\p{Surrogate}/u.test(string)) {
          return false;
        }
        colon.lastIndex = token.lastIndex;
        if (colon.test(written)) {
          const names = open.at(-1);
          if (names.has(string)) {
            return false;
          }
          names.add(string);
        }
      } else if (!Number.isFinite(Number(part)) || exact(part) !== exact(String(Number(part)))) {
        return false;
      }
    }
    return true;
  };

  // object parses an embedded JSON object. It returns null if the text is anything else, or ambiguous.
  const object = (written) => {
    try {
      const value = JSON.parse(written);
      return isObject(value) && hasOneReading(written) ? value : null;
    } catch {
      return null;
    }
  };

  const text = (value) => typeof value === "string";
  const textOrNull = (value) => value === null || text(value);
  // A missing value is null, never an empty text.
  const someOrNull = (value) => value !== "" && textOrNull(value);
  const list = (members) => (value) => Array.isArray(value) && value.every((element) => hasShape(element, members));
  const listOrNull = (members) => (value) => value === null || list(members)(value);

  // hasShape reports whether a value is an object with exactly these members.
  const hasShape = (value, members) => {
    const names = Object.keys(members);
    return (
      isObject(value) &&
      Object.keys(value).length === names.length &&
      names.every((name) => Object.hasOwn(value, name) && members[name](value[name]))
    );
  };

  const bundleShape = {
    anchors: list({ digest: text, method: text, proof: text, subject: text }),
    approvals: listOrNull({ key_id: someOrNull, record: text, signature: someOrNull }),
    entries: listOrNull({ body: text, payload: textOrNull, redactions: textOrNull }),
    format: text,
    generated_at: text,
    log_proof: text,
    receipt: text,
    receipt_hash: text,
    signing_keys: someOrNull,
  };

  const parseBundle = (bytes) => {
    if (bytes.length > maxBundle) {
      throw new NoBundle("the file is larger than 64 MiB");
    }
    let written;
    try {
      written = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes);
    } catch {
      throw new NoBundle("the file is not UTF-8 text");
    }
    if (written.endsWith("\n")) {
      written = written.slice(0, -1);
    }
    let value;
    try {
      value = JSON.parse(written);
    } catch {
      throw new NoBundle("the file is not JSON");
    }
    if (isObject(value) && text(value.format) && value.format !== "countersign-bundle-v1") {
      throw new NoBundle("this page does not know the file’s format");
    }
    if (!hasShape(value, bundleShape) || (value.approvals === null) !== (value.entries === null)) {
      throw new NoBundle("the file does not have exactly the members of a bundle");
    }
    const again = canonical(value);
    // Among others, hasOneReading refuses lone surrogates, which have no UTF-8 form to hash.
    if (again !== written || !hasOneReading(written)) {
      throw new NoBundle("the file is not in canonical form: it was reformatted by another program, or altered");
    }
    return value;
  };

  // --- notes and keys (C2SP signed-note, tlog-checkpoint, tlog-cosignature) ---------

  const ed25519Key = 1; // the key type of a log
  const cosignatureKey = 4; // the key type of a witness
  // biome-ignore lint/suspicious/noControlCharactersInRegex: a name has none
  const badName = /[\u0000-\u0020\u0085\u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000+]/;

  const keyHash = async (crypto, name, algorithm, key) =>
    hex((await crypto.sha256(concat(utf8.encode(name + "\n"), Uint8Array.of(algorithm), key))).subarray(0, 4));

  // parseKey parses a verifier key of the form name+hash+base64. The key of a witness may also have the
  // plain Ed25519 type, but cosignatures always carry the hash of the cosignature type.
  const parseKey = async (crypto, written, witness) => {
    const what = witness ? "A witness’s key" : "The log key";
    const [, name, hash, encoded] = /^([^+]+)\+([0-9a-fA-F]{8})\+(.+)$/.exec(written) ?? [];
    const data = encoded === undefined ? null : fromBase64(encoded);
    if (data === null || data.length === 0 || badName.test(name)) {
      throw new TrustError(what + " does not have the form name+hash+key: copy the whole line that you received.");
    }
    const [algorithm, key] = [data[0], data.subarray(1)];
    if (hash.toLowerCase() !== (await keyHash(crypto, name, algorithm, key))) {
      throw new TrustError(what + " does not match its hash: part of it is missing or was changed.");
    }
    const known = algorithm === ed25519Key || (witness && algorithm === cosignatureKey);
    if (!known || key.length !== 32 || isSmallOrder(key)) {
      throw new TrustError(what + " has a type that this page does not support.");
    }
    return { name, key, hash: witness ? await keyHash(crypto, name, cosignatureKey, key) : hash.toLowerCase() };
  };

  // parseNote splits a signed note. It returns null if the text is not one. Of several signatures with
  // the same name and hash, only the first counts.
  const parseNote = (written) => {
    // biome-ignore lint/suspicious/noControlCharactersInRegex: a note has none but line breaks
    if (/[\u0000-\u0009\u000b-\u001f]/.test(written)) {
      return null;
    }
    const split = written.lastIndexOf("\n\n");
    if (split < 0 || !written.endsWith("\n") || split + 2 === written.length) {
      return null;
    }
    const lines = written.slice(split + 2, -1).split("\n");
    if (lines.length > maxSignatures) {
      return null;
    }
    const signatures = new Map();
    for (const line of lines) {
      const [, name, encoded] = /^— ([^ ]+) ([^ ]+)$/.exec(line) ?? [];
      const data = encoded === undefined ? null : fromBase64(encoded);
      if (data === null || data.length < 5 || badName.test(name)) {
        return null;
      }
      const signer = name + "+" + hex(data.subarray(0, 4));
      if (!signatures.has(signer)) {
        signatures.set(signer, data.subarray(4));
      }
    }
    return { text: written.slice(0, split + 1), signatures };
  };

  const signatureOf = (note, key) => note.signatures.get(key.name + "+" + key.hash);

  // signedByLog reports whether one of the log keys, under the log's name, signed the note.
  const signedByLog = async (crypto, note, origin, logKeys) => {
    for (const key of logKeys) {
      const signature = signatureOf(note, key);
      if (key.name === origin && signature && (await crypto.signed(key.key, utf8.encode(note.text), signature))) {
        return true;
      }
    }
    return false;
  };

  // cosignedAt returns the time of a witness's cosignature in seconds, as a bigint. It returns null if
  // there is no valid cosignature.
  const cosignedAt = async (crypto, note, witness) => {
    const signature = signatureOf(note, witness);
    if (signature?.length !== 72) {
      return null;
    }
    const time = new DataView(signature.buffer, signature.byteOffset, 8).getBigUint64(0);
    const message = utf8.encode(`cosignature/v1\ntime ${time}\n${note.text}`);
    return time <= maxTime && (await crypto.signed(witness.key, message, signature.subarray(8))) ? time : null;
  };

  // --- the log's proof (C2SP tlog-proof, tlog-checkpoint) ---------------------------

  // decimal parses an index or a size without leading zeros, as a bigint. It returns null for anything
  // else.
  const decimal = (written) => {
    const number = /^(0|[1-9][0-9]{0,18})$/.test(written) ? BigInt(written) : null;
    return number !== null && number <= maxCount ? number : null;
  };

  const parseHash = (line) => {
    const hash = fromBase64(line);
    return hash?.length === 32 ? hash : null;
  };

  // parseProof parses as much as it can: the result may have an index and hashes but no checkpoint.
  const parseProof = (written) => {
    const split = written.indexOf("\n\n");
    const lines = split < 0 ? [] : written.slice(0, split).split("\n");
    if (lines.shift() !== "c2sp.org/tlog-proof@v1") {
      return {};
    }
    if (lines[0]?.startsWith("extra ") && fromBase64(lines.shift().slice("extra ".length)) === null) {
      return {};
    }
    const first = lines.shift();
    const index = first?.startsWith("index ") ? decimal(first.slice("index ".length)) : null;
    const hashes = lines.map(parseHash);
    if (index === null || hashes.length > maxProof || hashes.includes(null)) {
      return {};
    }
    return { index, hashes, checkpoint: parseCheckpoint(written.slice(split + 2)) };
  };

  // parseCheckpoint returns undefined if the text is not a checkpoint.
  const parseCheckpoint = (written) => {
    const note = parseNote(written);
    const lines = note?.text.split("\n") ?? [];
    if (lines.length < 4 || lines[0] === "" || lines.slice(0, -1).includes("")) {
      return undefined;
    }
    const [size, root] = [decimal(lines[1]), parseHash(lines[2])];
    return size === null || root === null ? undefined : { note, origin: lines[0], size, root };
  };

  // rootOf computes the root from a leaf and its inclusion proof (RFC 9162, section 2.1.3.2). It returns
  // null if the proof does not fit the size of the tree.
  const rootOf = async (crypto, leaf, index, size, hashes) => {
    if (index >= size) {
      return null;
    }
    const node = (left, right) => crypto.sha256(concat(Uint8Array.of(1), left, right));
    let [hash, at, last] = [leaf, index, size - 1n];
    for (const sibling of hashes) {
      if (last === 0n) {
        return null;
      }
      if (at % 2n === 1n || at === last) {
        hash = await node(sibling, hash);
        while (at % 2n === 0n && at !== 0n) {
          at >>= 1n;
          last >>= 1n;
        }
      } else {
        hash = await node(hash, sibling);
      }
      at >>= 1n;
      last >>= 1n;
    }
    return last === 0n ? hash : null;
  };

  return {
    canonical,
    concat,
    cosignedAt,
    cryptography,
    equal,
    fromBase64,
    hex,
    isObject,
    maxBundle,
    NoBundle,
    NotChecked,
    object,
    parseBundle,
    parseKey,
    parseNote,
    parseProof,
    rootOf,
    signedByLog,
    text,
    TrustError,
    utf8,
  };
})();
