// Says on the page of an approval that it was decided elsewhere, or has changed otherwise. It
// polls every few seconds while the page is visible. Without this script, the server refuses the
// second decision and says so.
"use strict";

const seconds = 3;
const patience = 3; // polls without an answer
const meanwhile = document.getElementById("meanwhile");
const form = document.querySelector("form.decide");
// Not the address of this page: a refused decision is shown at another address.
const page = meanwhile.dataset.address.replace(/\/standing$/, "");
const shown = meanwhile.dataset.mark; // the state that the page shows
let told = shown; // the newest state that the reader knows of
let missed = 0; // polls without an answer, in a row
let asking = false;
let timer = 0;

const link = (address, text) => {
  const a = document.createElement("a");
  a.className = "button quiet";
  a.href = address;
  a.textContent = text;
  return a;
};

const tell = (text, ...links) => {
  const say = document.createElement("p");
  say.className = "say";
  say.textContent = text;
  const on = document.createElement("p");
  on.className = "buttons";
  on.append(...links);
  meanwhile.className = "judgement warn";
  meanwhile.replaceChildren(say, on);
};

const tellNothing = () => {
  told = shown;
  meanwhile.className = "";
  meanwhile.replaceChildren();
};

const stop = () => {
  clearInterval(timer);
  timer = 0;
};

const settle = (now) => {
  stop();
  form?.remove();
  const links = [link(page, "Show the decision")];
  if (now.next) {
    links.unshift(link(now.next, "Next approval"));
  }
  tell(now.says, ...links);
};

const miss = () => {
  if (++missed === patience) {
    tell("The server does not answer. This page may be out of date.");
  }
};

const ask = async () => {
  let now;
  try {
    const answer = await fetch(meanwhile.dataset.address, { cache: "no-store", signal: AbortSignal.timeout(10000) });
    if (answer.status >= 400 && answer.status < 500 && answer.status !== 429) {
      stop();
      tell(
        "This page can no longer tell whether the approval still waits: your session may have ended.",
        link(page, "Reload the page"),
      );
      return;
    }
    if (!answer.ok) {
      miss();
      return;
    }
    now = await answer.json();
  } catch {
    miss();
    return;
  }
  if (missed >= patience || now.mark === shown) {
    tellNothing();
  }
  missed = 0;
  if (!timer || now.mark === told) {
    return;
  }
  told = now.mark;
  if (now.open) {
    tell(now.says, link(page, "Show the current state"));
  } else {
    settle(now);
  }
};

const look = async () => {
  if (document.hidden || !timer || asking) {
    return;
  }
  asking = true;
  await ask();
  asking = false;
};

const begin = () => {
  timer ||= setInterval(look, seconds * 1000);
};

begin();
document.addEventListener("visibilitychange", look);
// A decision on this page is not one made elsewhere.
form?.addEventListener("submit", stop);
// A page from the browser's cache shows the state when it was left.
window.addEventListener("pageshow", (event) => {
  if (event.persisted) {
    begin();
    look();
  }
});
