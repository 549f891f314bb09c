// Reloads the list of approvals periodically, but not while somebody is using it. In a
// hidden tab it reloads less often, to update the number in the title.
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
