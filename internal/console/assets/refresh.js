// The list of approvals keeps itself up to date, but never under the hands of
// someone who is using it. In a tab that nobody looks at it does so more rarely:
// there the title counts what waits.
"use strict";

const seconds = 10;
const secondsHidden = 60;
let waited = 0;

const reload = () => {
  const idle = document.activeElement === document.body || document.activeElement === null;
  if (idle && waited >= (document.hidden ? secondsHidden : seconds)) {
    location.reload();
  }
};

setInterval(() => {
  waited += seconds;
  reload();
}, seconds * 1000);
document.addEventListener("visibilitychange", reload);
