// A sign-in link carries its token behind the #, which no browser sends to a
// server. This moves it into the form and out of the address bar and the
// history. Using it is left to the person: whatever opens links on their behalf
// presses no button.
"use strict";

const takeLink = () => {
  const token = location.hash.slice(1);
  if (!/^csl_[0-9A-Za-z]+$/.test(token)) {
    return;
  }
  history.replaceState(null, "", location.pathname);
  document.getElementById("link").value = token;
  document.getElementById("paste").hidden = true;
  document.getElementById("ready").hidden = false;
  document.querySelector("#sign-in button").focus();
};

takeLink();
// A link opened in a tab that shows this page already changes only the hash.
window.addEventListener("hashchange", takeLink);
