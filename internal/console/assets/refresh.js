// The list of approvals keeps itself up to date, but never under the hands of
// someone who is using it, and never in a tab that nobody looks at.
"use strict";

const seconds = 10;
let due = false;

const reload = () => {
  const idle = document.activeElement === document.body || document.activeElement === null;
  if (due && idle && !document.hidden) {
    location.reload();
  }
};

setInterval(() => {
  due = true;
  reload();
}, seconds * 1000);
document.addEventListener("visibilitychange", reload);
