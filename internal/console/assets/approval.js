// The page of an approval says when it was decided elsewhere. It asks every few
// seconds, and only while somebody looks at it. Without this the server refuses
// the second decision, and says so then.
"use strict";

const seconds = 3;
const meanwhile = document.getElementById("meanwhile");
const form = document.querySelector("form.decide");
// Not the address bar's: a decision that was refused is shown at its own address.
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
      tell("Whether this still waits is not known any more: your session may have ended.", link(page, "Reload the page"));
      return;
    }
    if (!answer.ok) {
      return; // the server is asked again
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
    tell(now.says, link(page, "Show how it stands"));
  } else {
    settle(now);
  }
};

const begin = () => {
  timer ||= setInterval(look, seconds * 1000);
};

begin();
document.addEventListener("visibilitychange", look);
// What this page decides itself was not decided elsewhere.
form?.addEventListener("submit", stop);
// A page that the browser kept shows what stood when it was left.
window.addEventListener("pageshow", (event) => {
  if (event.persisted) {
    begin();
    look();
  }
});
