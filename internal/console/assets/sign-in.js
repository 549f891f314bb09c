// The token of a sign-in link is in the fragment, which browsers do not send. This moves it
// into the form, and removes it from the address bar and the history. The person still has to
// press the button, because programs that open links on their behalf do not.
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
// A link that is opened in a tab with this page changes only the fragment.
window.addEventListener("hashchange", takeLink);
