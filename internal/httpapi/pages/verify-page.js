// The user interface of the verifier. It reads a file and keys from the form and shows the result of
// verifyBundle. It stores nothing.
"use strict";

(() => {
  const { maxBundle } = globalThis.bundleFormat;
  const maxShown = 2000; // characters of one field of a receipt
  const byId = (id) => document.getElementById(id);

  const titles = {
    receipt_hash: "The receipt itself",
    events_digest: "The events",
    payload_hashes: "The payloads of the actions",
    approval_records: "What people decided",
    approval_signatures: "Reviewers’ signatures",
    inclusion: "Its place in the log",
    checkpoint_signature: "The log’s signature",
    witnesses: "Witnesses",
    anchors: "Proofs of time",
    receipt_signature: "The service’s own seal",
  };
  const marks = { pass: "✓ passed", fail: "✗ failed", not_checked: "– not checked" };

  const element = (name, content, className) => {
    const made = document.createElement(name);
    if (className) {
      made.className = className;
    }
    made.append(...[content].flat());
    return made;
  };

  const tooLarge = { verdict: "no_bundle", problem: "the file is larger than 64 MiB", checks: [], receipt: null };
  let file = null; // the chosen file: its name, and its bytes or null if it is too large
  let turn = 0; // counts the runs, so that only the newest shows its result

  const lines = (text) => text.split(/\s+/).filter((line) => line !== "");

  // quorum returns what was entered as a number. The value of a field with something else is empty,
  // which must not pass for 0.
  const quorum = (field) => (field.validity.badInput ? Number.NaN : Number(field.value));

  const trust = () => ({
    log_keys: lines(byId("log-key").value),
    witnesses: lines(byId("witnesses").value),
    quorum: quorum(byId("quorum")),
    log_key_revoked_at: byId("revoked-at").value.trim() || null,
  });

  const sentence = (text) => text.charAt(0).toUpperCase() + text.slice(1) + ".";

  // judgement returns the text for a result: a headline, an explanation and a list of points.
  const judgement = (result, given) => {
    const of = (name) => result.checks.find((check) => check.name === name);
    const reasons = (status) => result.checks.filter((check) => check.status === status).map(({ reason }) => sentence(reason));
    switch (result.verdict) {
      case "verified":
        return [
          "Verified: this receipt is in the organization’s log, exactly as shown here.",
          "This result relies on:",
          [
            "The log key that you entered. If it is not the organization’s, this result is worthless.",
            of("witnesses").status === "pass"
              ? `The witnesses that you named: ${of("witnesses").reason}. They would have to collude with the operator to hide another history.`
              : "The log’s operator. You named no witnesses, so nobody else confirms that everyone sees the same log.",
            of("events_digest").status === "pass"
              ? "The events in the file, which match the receipt."
              : "The receipt alone: its events are not in the file.",
          ],
        ];
      case "failed":
        return [
          "Do not rely on this file: it failed a check.",
          given.log_keys.length + given.witnesses.length > 0
            ? "It was changed, or a key that you entered belongs to another log. What failed:"
            : "It was changed. What failed:",
          reasons("fail"),
        ];
      case "no_bundle":
        return ["This is not an evidence file.", sentence(result.problem) + " Ask for the original file.", []];
    }
    if (!globalThis.crypto?.subtle) {
      return [
        "Nothing was checked: this browser does not let this page use cryptography.",
        "Browsers allow that only for pages opened over HTTPS or from a file. Save this page and open the file, or use another browser.",
        [],
      ];
    }
    if (given.log_keys.length === 0) {
      return [
        "Not verified yet: the log key is missing.",
        "The file is consistent, but anyone could have made it. Enter the organization’s log key above.",
        [],
      ];
    }
    if (!result.signatures) {
      return [
        "Not verified: this browser cannot check the signatures.",
        "It does not support Ed25519. The file is consistent, but anyone could have made it. Use a newer browser or the command line.",
        [],
      ];
    }
    return ["Not verified: a required check could not be made.", "What was not checked:", reasons("not_checked")];
  };

  const showVerdict = (kind, [headline, meaning, points]) => {
    const box = element("div", [element("h2", headline), element("p", meaning)], "verdict " + kind);
    if (points.length > 0) {
      box.append(
        element(
          "ul",
          points.map((point) => element("li", point)),
        ),
      );
    }
    byId("verdict").replaceChildren(box);
  };

  const showReceipt = (receipt, verified) => {
    byId("receipt-title").textContent = verified ? "What the receipt says" : "What the file claims (not proven)";
    const text = (value) => {
      const shown = typeof value === "string" ? value : "";
      return shown.length > maxShown ? shown.slice(0, maxShown) + "…" : shown || "not given";
    };
    const rows = [
      ["Receipt number", text(receipt?.receipt_number)],
      ["Organization", text(receipt?.organization)],
      ["Summary", text(receipt?.summary)],
      ["Generated", text(receipt?.generated_at)],
    ];
    byId("receipt").replaceChildren(...rows.map(([name, value]) => element("div", [element("dt", name), element("dd", value)])));
  };

  const showChecks = (checks) => {
    byId("checks").replaceChildren(
      ...checks.map(({ name, status, reason }) =>
        element("li", [
          element("span", marks[status], "status " + status),
          element("div", [element("p", [titles[name], " ", element("code", name)]), element("p", sentence(reason), "why")]),
        ]),
      ),
    );
  };

  const show = (result, given) => {
    showVerdict(result.verdict, judgement(result, given));
    byId("evidence").hidden = result.verdict === "no_bundle";
    showReceipt(result.receipt, result.verdict === "verified");
    showChecks(result.checks);
    byId("checked").replaceChildren(`Checked in this browser at ${new Date().toISOString()}: `, element("bdi", file.name), ".");
    document.body.dataset.verdict = result.verdict;
  };

  // begin starts a run and returns its number. An earlier result must not be taken for one of this run,
  // however long it takes.
  const begin = () => {
    delete document.body.dataset.verdict;
    byId("evidence").hidden = true;
    byId("verdict").replaceChildren(element("p", "Checking…", "note"));
    return ++turn;
  };

  const showNothing = (why) => {
    showVerdict("indeterminate", ["Nothing was checked.", why, []]);
    document.body.dataset.verdict = "none";
  };

  const verify = async () => {
    if (file === null) {
      return;
    }
    const mine = begin();
    const given = trust();
    let result;
    try {
      result = await (file.bytes ? globalThis.verifyBundle(file.bytes, given) : tooLarge);
    } catch (error) {
      if (mine === turn) {
        const expected = error instanceof TypeError && error.isTrust;
        showNothing(expected ? error.message : "This browser could not finish the checks. Use another one or the command line.");
      }
      return;
    }
    if (mine === turn) {
      show(result, given);
    }
  };

  const choose = async (chosen) => {
    if (!chosen) {
      return;
    }
    const mine = begin();
    byId("chosen").textContent = chosen.name;
    file = null;
    let bytes = null;
    try {
      bytes = chosen.size > maxBundle ? null : new Uint8Array(await chosen.arrayBuffer());
    } catch {
      if (mine === turn) {
        showNothing("The file could not be read. Choose it again.");
      }
      return;
    }
    if (mine === turn) {
      file = { name: chosen.name, bytes };
      await verify();
    }
  };

  byId("file").addEventListener("change", (event) => {
    choose(event.target.files[0]);
    event.target.value = ""; // so that choosing the same file again is a change
  });
  byId("form").addEventListener("submit", (event) => event.preventDefault());
  byId("form").addEventListener("input", (event) => {
    if (event.target.type !== "file") {
      verify();
    }
  });
  // Without this, the browser would open a file that is dropped beside the field.
  const drop = byId("drop");
  for (const kind of ["dragover", "drop"]) {
    document.addEventListener(kind, (event) => event.preventDefault());
  }
  document.addEventListener("dragover", () => drop.classList.add("over"));
  document.addEventListener("dragleave", () => drop.classList.remove("over"));
  document.addEventListener("drop", (event) => {
    drop.classList.remove("over");
    choose(event.dataTransfer.files[0]);
  });
  byId("print").addEventListener("click", () => globalThis.print());
  byId("online").hidden = location.protocol === "file:";
})();
