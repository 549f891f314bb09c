// Improves every page: it shows times in the reader's time zone, adds buttons to copy, scrolls the
// navigation to the current page, and sends a form only once. The pages work without it.
"use strict";

const two = (n) => String(n).padStart(2, "0");

// The time zone is shown as an offset, because its short name differs between browsers.
const offset = (minutes) => {
  if (minutes === 0) {
    return "UTC";
  }
  const size = Math.abs(minutes);
  const rest = size % 60 ? `:${two(size % 60)}` : "";
  return `UTC${minutes < 0 ? "−" : "+"}${Math.floor(size / 60)}${rest}`;
};

const showLocal = (element) => {
  const at = new Date(element.dateTime);
  // A forged record may contain anything. What is not a time stays as it is.
  if (!/^\d{4}-\d\d-\d\dT[\d:.]+Z$/.test(element.dateTime) || Number.isNaN(at.getTime())) {
    return;
  }
  const day = [at.getFullYear(), two(at.getMonth() + 1), two(at.getDate())].join("-");
  const clock = [at.getHours(), at.getMinutes(), at.getSeconds()].map(two).join(":");
  element.title = element.textContent;
  element.textContent = `${day} ${clock} ${offset(-at.getTimezoneOffset())}`;
};

// Browsers offer the clipboard only to pages over TLS. On others, the text is selected and
// copied.
const copy = async (element) => {
  if (navigator.clipboard) {
    await navigator.clipboard.writeText(element.textContent);
    return true;
  }
  getSelection().selectAllChildren(element);
  return document.execCommand("copy");
};

const offerCopy = (element) => {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "quiet copy";
  button.textContent = "Copy";
  button.addEventListener("click", async () => {
    const done = await copy(element).catch(() => false);
    button.textContent = done ? "Copied" : "Select and copy it";
    setTimeout(() => {
      button.textContent = "Copy";
    }, 2000);
  });
  element.after(" ", button);
};

const improve = () => {
  for (const element of document.querySelectorAll("time")) {
    showLocal(element);
  }
  for (const element of document.querySelectorAll("[data-copy]")) {
    offerCopy(element);
  }
  for (const nav of document.querySelectorAll(".bar nav, .second")) {
    const here = nav.querySelector("[aria-current]");
    if (here && here.offsetLeft + here.offsetWidth > nav.offsetLeft + nav.clientWidth) {
      nav.scrollLeft = here.offsetLeft - nav.offsetLeft - (nav.clientWidth - here.offsetWidth) / 2;
    }
  }
};

improve();

// Whoever presses a button again because the server is slow does not want two of everything. The
// form can be sent again after a while, in case the reader has stopped the first attempt.
const release = (form) => form.removeAttribute("aria-busy");

document.addEventListener("submit", (event) => {
  const form = event.target;
  if (form.method !== "post") {
    return;
  }
  if (form.hasAttribute("aria-busy")) {
    event.preventDefault();
    return;
  }
  form.setAttribute("aria-busy", "true");
  setTimeout(release, 20000, form);
});
// A page from the browser's cache was left by sending its form.
window.addEventListener("pageshow", () => document.querySelectorAll("form[aria-busy]").forEach(release));
