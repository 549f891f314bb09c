// Tells whoever holds a copy whether the link is about it: the hash of the copy is made here,
// and only the hash is sent. Without this script the hash can be entered by hand.
"use strict";

(() => {
  const form = document.getElementById("compare");
  const drop = document.getElementById("drop");
  const answer = document.getElementById("answer");
  const artifact = form.dataset.artifact;
  let turn = 0; // counts the files: only the newest may show its answer

  const ask = async (hash) => {
    const response = await fetch(location.pathname.replace(/\/compare$/, "") + "/compare", {
      method: "POST",
      headers: { "Content-Type": "application/json", Accept: "application/json" },
      body: JSON.stringify({ hash }),
    });
    if (!response.ok) {
      throw new Error(response.status === 429 ? "too many questions" : "no answer");
    }
    return (await response.json()).matches;
  };

  const judge = async (file) => {
    const hashes = await globalThis.hashesOfCopy(new Uint8Array(await file.arrayBuffer()), artifact);
    for (const hash of hashes) {
      if (await ask(hash)) {
        return `✓ This link is about that very ${artifact}: ${file.name} is a true copy of it.`;
      }
    }
    return `✗ This link is not about what is in ${file.name}: it is about another ${artifact}, or the copy was changed.`;
  };

  const compare = async (file) => {
    if (!file) {
      return;
    }
    const mine = ++turn;
    answer.textContent = "";
    let said;
    try {
      said = await judge(file);
    } catch (error) {
      said = error.isTrust ? error.message : "The server did not answer. Try again in a moment.";
    }
    if (mine === turn) {
      answer.textContent = said;
    }
  };

  drop.hidden = false;
  document.getElementById("file").addEventListener("change", (event) => compare(event.target.files[0]));
  // A file that misses the field would otherwise be opened in the place of this page.
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
