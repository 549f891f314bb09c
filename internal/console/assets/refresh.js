// Refreshes the list of approvals periodically, but not while somebody is using it. In a hidden
// tab it does so less often, to update the number in the title. While the server does not answer,
// the list stays and says so.
"use strict";

const seconds = 10;
const secondsHidden = 60;
let waited = 0;
let asking = false;

// A click on a text gives the content the focus. Whoever has selected a text wants to copy it.
const idle = () =>
  [document.body, document.getElementById("content"), null].includes(document.activeElement) && getSelection().isCollapsed;

const tellStale = () => {
  if (document.getElementById("stale")) {
    return;
  }
  const alarm = document.createElement("p");
  alarm.id = "stale";
  alarm.className = "alarm";
  alarm.role = "alert";
  alarm.textContent = "The server does not answer. This list may be out of date.";
  document.getElementById("content").prepend(alarm);
};

const refresh = async () => {
  waited = 0;
  let text;
  try {
    const answer = await fetch(location.href, { cache: "no-store", signal: AbortSignal.timeout(seconds * 1000) });
    if (answer.status >= 400 && answer.status < 500 && answer.status !== 429) {
      location.reload(); // the session has ended: the page says so
      return;
    }
    text = answer.ok ? await answer.text() : "";
  } catch {
    text = "";
  }
  if (text === "") {
    tellStale();
  } else if (idle()) {
    const now = new DOMParser().parseFromString(text, "text/html");
    document.title = now.title;
    document.body.replaceWith(now.body);
    improve();
  }
};

const refreshIfDue = async () => {
  if (asking || !idle() || waited < (document.hidden ? secondsHidden : seconds)) {
    return;
  }
  asking = true;
  await refresh();
  asking = false;
};

setInterval(() => {
  waited += seconds;
  refreshIfDue();
}, seconds * 1000);
document.addEventListener("visibilitychange", refreshIfDue);
