// Says on the page of an approval that it was decided elsewhere. It polls every few
// seconds while the page is visible. Without this script, the server refuses the second
// decision and says so.
"use strict";

const seconds = 3;
const meanwhile = document.getElementById("meanwhile");
const form = document.querySelector("form.decide");
// Not the address of this page: a refused decision is shown at another address.
const page = meanwhile.dataset.address.replace(/\/standing$/, "");
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

const look = async () => {
  if (document.hidden || !timer) {
    return;
  }
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
      return; // try again
    }
    now = await answer.json();
  } catch {
    return;
  }
  if (!timer || now.mark === meanwhile.dataset.mark) {
    return;
  }
  meanwhile.dataset.mark = now.mark;
  if (now.open) {
    tell(now.says, link(page, "Show the current state"));
  } else {
    settle(now);
  }
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
