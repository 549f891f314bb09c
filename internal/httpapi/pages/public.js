// Compares a copy with the link. The copy is hashed here, and only the hash is sent. Without this
// script, the hash can be entered by hand.
"use strict";

(() => {
  const { maxBundle, TrustError } = globalThis.bundleFormat;
  const form = document.getElementById("compare");
  const drop = document.getElementById("drop");
  const answer = document.getElementById("answer");
  const artifact = form.dataset.artifact;
  const maxRequests = 20; // for one file, because the server limits the rate of an address
  let turn = 0; // counts the files, so that only the newest shows its result

  const matches = async (hash) => {
    const response = await fetch(location.pathname.replace(/\/compare$/, "") + "/compare", {
      method: "POST",
      headers: { "Content-Type": "application/json", Accept: "application/json" },
      body: JSON.stringify({ hash }),
      signal: AbortSignal.timeout(15000),
    });
    if (response.status === 404) {
      throw new TrustError("This link is no longer valid.");
    }
    if (!response.ok) {
      throw new Error(`status ${response.status}`);
    }
    return (await response.json()).matches;
  };

  // The name of a file may turn the direction of text. In its own element, it turns only itself.
  const nameOf = (file) => {
    const name = document.createElement("bdi");
    name.textContent = file.name;
    return name;
  };

  // read returns the content of a file. A larger one than could be a copy is not read into memory.
  const read = async (file) => {
    if (file.size > maxBundle) {
      throw new TrustError("The file is larger than 64 MiB.");
    }
    try {
      return new Uint8Array(await file.arrayBuffer());
    } catch {
      throw new TrustError("The file could not be read. Choose it again.");
    }
  };

  // judge returns the texts and nodes of the answer.
  const judge = async (file) => {
    const hashes = await globalThis.hashesOfCopy(await read(file), artifact);
    for (const hash of hashes.slice(0, maxRequests)) {
      if (await matches(hash)) {
        return [`✓ This link is about exactly this ${artifact}: `, nameOf(file), " is a true copy."];
      }
    }
    if (hashes.length > maxRequests) {
      return [
        `None of the first ${maxRequests} of the ${hashes.length} decisions in `,
        nameOf(file),
        " matches. Enter the hash of another one below.",
      ];
    }
    return ["✗ ", nameOf(file), ` does not match: this link is about another ${artifact}, or the copy was changed.`];
  };

  const compare = async (file) => {
    if (!file) {
      return;
    }
    const mine = ++turn;
    answer.textContent = "";
    let result;
    try {
      result = await judge(file);
    } catch (error) {
      result = [error.isTrust ? error.message : "The server did not answer. Try again in a moment."];
    }
    if (mine === turn) {
      answer.replaceChildren(...result);
    }
  };

  drop.hidden = false;
  document.getElementById("file").addEventListener("change", (event) => {
    compare(event.target.files[0]);
    event.target.value = ""; // so that choosing the same file again is a change
  });
  // Without this, the browser would open a file that is dropped beside the field.
  for (const kind of ["dragover", "drop"]) {
    document.addEventListener(kind, (event) => event.preventDefault());
  }
  document.addEventListener("dragover", () => drop.classList.add("over"));
  document.addEventListener("dragleave", () => drop.classList.remove("over"));
  document.addEventListener("drop", (event) => {
    drop.classList.remove("over");
    compare(event.dataTransfer.files[0]);
  });
})();
