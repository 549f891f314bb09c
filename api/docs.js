// Lays out the OpenAPI document of this server. Everything is built as nodes
// with text, never as markup, so that no description can run anything.
"use strict";

const METHODS = new Set(["get", "post", "put", "patch", "delete"]);

let spec;
let errorCodes;

// ---- Nodes ----

function el(tag, attributes, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value !== undefined && value !== null) node.setAttribute(name, value);
  }
  node.append(...children.flat().filter((child) => child !== undefined && child !== null && child !== ""));
  return node;
}

// inline turns `code`, **bold** and *emphasis* into nodes. An error code links
// to its explanation.
function inline(text) {
  return text.split(/(`[^`]+`|\*\*[^*]+\*\*|\*[^*\s][^*]*\*)/).map((part) => {
    if (part.startsWith("`")) return codeNode(part.slice(1, -1));
    if (part.startsWith("**")) return el("strong", {}, part.slice(2, -2));
    if (part.startsWith("*") && part.length > 2) return el("em", {}, part.slice(1, -1));
    return part;
  });
}

function codeNode(text) {
  const code = el("code", {}, text);
  return errorCodes.has(text) ? el("a", { href: "#" + text }, code) : code;
}

// paragraph joins the lines of a text.
function paragraph(text, ...more) {
  return el("p", {}, inline(text.trim().replace(/\s*\n\s*/g, " ")), ...more);
}

function prose(text) {
  const blocks = (text || "")
    .trim()
    .split(/\n\s*\n/)
    .filter(Boolean);
  const nodes = blocks.map((block) => (block.startsWith("## ") ? el("h2", {}, block.slice(3)) : paragraph(block)));
  return el("div", { class: "prose" }, nodes);
}

// ---- Schemas ----

// resolve follows references; what stands beside a $ref wins over its target.
function resolve(object) {
  if (!object?.$ref) return object || {};
  const target = object.$ref
    .replace(/^#\//, "")
    .split("/")
    .reduce((at, name) => at[name], spec);
  const { $ref, ...beside } = object;
  return { ...resolve(target), ...beside };
}

// variants lists the alternatives of a schema. One that only says which members
// are required is left out.
function variants(schema) {
  return (schema.oneOf || schema.anyOf || []).map(resolve).filter((variant) => variant.type);
}

// typesOf names the types of a schema and its variants, each once.
function typesOf(schema) {
  const own = [schema.type || []].flat().map((type) => {
    if (type === "array") return "array of " + describeItems(resolve(schema.items));
    return type === "null" ? type : schema.format || type;
  });
  return [...new Set([...own, ...variants(schema).flatMap(typesOf)])];
}

function describeType(schema) {
  const types = typesOf(schema);
  const parts = [types.filter((type) => type !== "null").join(" or ") || "any"];
  if (types.includes("null")) parts[0] += " or null";
  if (schema.const !== undefined) parts.push("always " + JSON.stringify(schema.const));
  if (schema.enum) parts.push("one of " + schema.enum.filter((value) => value !== null).join(", "));
  parts.push(
    range(schema.minLength, schema.maxLength, "characters"),
    range(schema.minimum, schema.maximum, ""),
    range(schema.minItems, schema.maxItems, "elements"),
  );
  if (schema.default !== undefined) parts.push("default " + schema.default);
  return parts.filter(Boolean).join(" · ");
}

function describeItems(schema) {
  const [type, ...bounds] = describeType(schema).split(" · ");
  return bounds.length === 0 ? type : type + " (" + bounds.join(", ") + ")";
}

function range(least, most, unit) {
  const write = (number) => number.toLocaleString("en", { maximumSignificantDigits: 6 });
  let text = "";
  if (least !== undefined && least === most) text = write(least);
  else if (least !== undefined && most !== undefined) text = write(least) + " to " + write(most);
  else if (most !== undefined) text = "at most " + write(most);
  else if (least !== undefined) text = "at least " + write(least);
  return text && unit ? text + " " + unit : text;
}

// innerObjects lists the objects that a value can be or contain.
function innerObjects(schema) {
  if (schema.properties) return [schema];
  if (schema.items) return innerObjects(resolve(schema.items));
  return variants(schema).flatMap(innerObjects);
}

function field(name, schema, required) {
  const head = el("div", { class: "field" }, el("b", {}, name), el("span", { class: "type" }, describeType(schema)));
  if (required) head.append(el("span", { class: "must" }, "required"));
  const meaning = schema.description ? paragraph(schema.description) : "";
  const inner = innerObjects(schema).map((object, i) => members((i === 0 ? "Members of " : "Other members of ") + name, object));
  return el("li", {}, head, meaning, inner);
}

function fieldsOf(schema) {
  const required = new Set(schema.required || []);
  const properties = Object.entries(schema.properties || {});
  const fields = properties.map(([name, property]) => field(name, resolve(property), required.has(name)));
  return el("ul", { class: "fields" }, fields);
}

function members(title, schema, attributes) {
  return el("details", attributes, el("summary", {}, title), fieldsOf(schema));
}

// ---- Operations ----

function operationsOf(tag) {
  const found = [];
  for (const [path, item] of Object.entries(spec.paths)) {
    for (const [method, operation] of Object.entries(item)) {
      if (!METHODS.has(method) || !operation.tags.includes(tag)) continue;
      const parameters = [...(item.parameters || []), ...(operation.parameters || [])].map(resolve);
      found.push({ ...operation, path, method, parameters });
    }
  }
  return found;
}

function badge(method) {
  return el("span", { class: "method " + method }, method.toUpperCase());
}

function roleText(role) {
  return role === "public" ? "public" : role === "admin" ? "admin" : role + " or above";
}

function operationCard(operation) {
  const { operationId: id, "x-role": role, method, path, summary, description } = operation;
  const search = [method, path, summary, description, id, role].join(" ").toLowerCase();
  const may = el("span", { class: "role " + role, title: "Who may call it" }, roleText(role));
  const text = el("div", {}, prose(description), parameterSection(operation), bodySection(operation), answerSection(operation));
  return el(
    "article",
    { class: "card", id, "data-search": search },
    el("h3", {}, el("a", { href: "#" + id }, summary)),
    el("div", { class: "route" }, badge(method), el("span", { class: "path" }, path), may),
    el("div", { class: "columns" }, text, el("div", { class: "aside" }, example(curl(operation)))),
  );
}

function parameterSection(operation) {
  if (operation.parameters.length === 0) return "";
  const items = operation.parameters.map((parameter) => {
    const schema = { ...resolve(parameter.schema), description: parameter.description };
    const item = field(parameter.name, schema, parameter.required);
    item.querySelector("b").after(el("span", { class: "type" }, parameter.in));
    return item;
  });
  return [el("h4", {}, "Parameters"), el("ul", { class: "fields" }, items)];
}

// bodyOf returns the type and the description of a body: JSON, or a form where there is no JSON.
function bodyOf(operation) {
  const content = Object.entries(operation.requestBody.content);
  return content.find(([type]) => type === "application/json") || content[0];
}

function bodySection(operation) {
  if (!operation.requestBody) return "";
  const schema = resolve(bodyOf(operation)[1].schema);
  return [el("h4", {}, operation.requestBody.required ? "Body" : "Body (optional)"), fieldsOf(schema)];
}

function answerSection(operation) {
  const items = Object.entries(operation.responses).map(([status, response]) => answer(status, resolve(response)));
  return [el("h4", {}, "Answers"), el("ul", { class: "answers" }, items)];
}

function answer(status, response) {
  const [type, media] = Object.entries(response.content || {})[0] || [];
  const schema = media && type === "application/json" ? resolve(media.schema) : undefined;
  const headers = Object.keys(response.headers || {}).map((name) => "`" + name + "`");
  const code = el("span", { class: "status" + (status >= "400" ? " error" : "") }, status);
  const meaning = paragraph(response.description, headers.length ? inline(" With " + headers.join(", ") + ".") : "");
  const more = schema?.properties ? members("Members of the answer", schema) : "";
  return el("li", {}, el("div", { class: "answer" }, code, meaning), more);
}

// ---- Examples ----

function curl(operation) {
  const base = location.origin + location.pathname.replace(/\/docs\/?$/, "");
  const path = operation.path.replace(/{(\w+)}/g, (_, name) => "<" + name.toUpperCase() + ">");
  const lines = ["curl" + (operation.method === "get" ? "" : " -X " + operation.method.toUpperCase()) + ` "${base}${path}"`];
  if (operation["x-role"] !== "public") lines.push('-H "Authorization: Bearer <API_KEY>"');
  for (const parameter of operation.parameters) {
    if (parameter.in === "header") lines.push(`-H "${parameter.name}: <${parameter.name.toUpperCase().replace(/-/g, "_")}>"`);
  }
  if (operation.requestBody) {
    const [type, media] = bodyOf(operation);
    const quote = (text) => "'" + text.replace(/'/g, "'\\''") + "'";
    if (type === "application/json") {
      lines.push('-H "Content-Type: application/json"', "-d " + quote(JSON.stringify(media.example, null, 2)));
    } else {
      for (const [name, value] of Object.entries(media.example)) lines.push("--data-urlencode " + quote(name + "=" + value));
    }
  }
  return lines.join(" \\\n  ");
}

function example(text) {
  const block = el("pre", { tabindex: "0", "aria-label": "Example request" }, el("code", {}, text));
  const button = el("button", { type: "button", class: "copy", "aria-live": "polite" }, "Copy");
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = "Copied";
    } catch {
      button.textContent = "Select and copy";
      getSelection().selectAllChildren(block);
    }
    setTimeout(() => {
      button.textContent = "Copy";
    }, 2000);
  });
  return el("div", { class: "example" }, el("h4", {}, "Example"), button, block);
}

// ---- Error codes ----

function errorCard(error) {
  const search = [error.code, error.status, error.title, error.description].join(" ").toLowerCase();
  const status = el("span", { class: "status error" }, String(error.status));
  return el(
    "article",
    { class: "card error-code", id: error.code, "data-search": search },
    el("div", { class: "route" }, status, el("h3", {}, el("a", { href: "#" + error.code }, error.code))),
    el("p", { class: "meaning" }, error.title),
    paragraph(error.description),
  );
}

function problemCard() {
  return members("Members of an error answer", resolve(spec.components.schemas.Problem), { class: "problem" });
}

// ---- The page ----

function section(title, description, cards, links) {
  const id = "tag-" + title.toLowerCase().replace(/\W+/g, "-");
  const heading = el("h2", {}, title);
  document.getElementById("nav").append(el("div", { "data-section": id }, heading, el("ul", {}, links)));
  document.getElementById("content").append(el("section", { class: "tag", id }, el("h2", {}, title), prose(description), cards));
}

function render() {
  document.title = spec.info.title;
  document.querySelector("#top h1").textContent = spec.info.title;
  document.getElementById("state").remove();
  document.getElementById("top").append(el("p", { class: "lead" }, spec.info.summary), prose(spec.info.description));
  for (const tag of spec.tags) {
    const operations = operationsOf(tag.name);
    const links = operations.map(({ operationId, method, summary }) =>
      el("li", {}, el("a", { href: "#" + operationId }, badge(method), summary)),
    );
    section(tag.name, tag.description, operations.map(operationCard), links);
  }
  const errors = spec["x-error-codes"];
  const links = errors.map(({ code }) => el("li", {}, el("a", { href: "#" + code, class: "code" }, code)));
  const about = "Every error answer is `application/problem+json`, and its `type` points here.";
  section("Error codes", about, [problemCard(), ...errors.map(errorCard)], links);
}

function search(words) {
  const wanted = words.toLowerCase().split(/\s+/).filter(Boolean);
  let count = 0;
  for (const card of document.querySelectorAll("[data-search]")) {
    card.hidden = !wanted.every((word) => card.dataset.search.includes(word));
    document.querySelector(`nav a[href="#${card.id}"]`).parentElement.hidden = card.hidden;
    if (!card.hidden) count++;
  }
  for (const group of document.querySelectorAll("nav [data-section]")) {
    group.hidden = !group.querySelector("li:not([hidden])");
    document.getElementById(group.dataset.section).hidden = group.hidden;
  }
  for (const whole of document.querySelectorAll("#top, .problem")) whole.hidden = wanted.length > 0;
  document.getElementById("found").textContent = wanted.length === 0 ? "" : count === 1 ? "1 match" : count + " matches";
}

function toggleMenu(open) {
  document.getElementById("menu").setAttribute("aria-expanded", String(open));
  document.getElementById("navigation").classList.toggle("open", open);
}

function listen() {
  const input = document.getElementById("search");
  const menu = document.getElementById("menu");
  input.addEventListener("input", () => search(input.value));
  menu.addEventListener("click", () => toggleMenu(menu.getAttribute("aria-expanded") !== "true"));
  document.getElementById("nav").addEventListener("click", (event) => {
    if (event.target.closest("a")) toggleMenu(false);
  });
  document.addEventListener("keydown", (event) => {
    const typing = event.target.closest?.("input, textarea");
    if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey) {
      event.preventDefault();
      toggleMenu(true);
      input.focus();
    }
    if (event.key === "Escape") {
      input.value = "";
      search("");
      toggleMenu(false);
    }
  });
  addEventListener("hashchange", () => reveal("auto"));
}

// reveal shows what the address points to, even when a search hides it.
function reveal(behavior) {
  const target = document.getElementById(location.hash.slice(1));
  if (!target) return;
  if (target.closest("[hidden]")) {
    document.getElementById("search").value = "";
    search("");
  }
  for (const card of document.querySelectorAll(".shown")) card.classList.remove("shown");
  target.classList.add("shown");
  target.scrollIntoView({ behavior });
}

function followReading() {
  const observer = new IntersectionObserver(
    (entries) => {
      for (const entry of entries.filter((candidate) => candidate.isIntersecting)) {
        for (const link of document.querySelectorAll("nav a[aria-current]")) link.removeAttribute("aria-current");
        document.querySelector(`nav a[href="#${entry.target.id}"]`).setAttribute("aria-current", "true");
      }
    },
    { rootMargin: "-10% 0px -80% 0px" },
  );
  for (const card of document.querySelectorAll("[data-search]")) observer.observe(card);
}

async function start() {
  try {
    const answer = await fetch("openapi.json");
    if (!answer.ok) throw new Error("the server answered " + answer.status);
    spec = await answer.json();
  } catch (error) {
    document.getElementById("state").textContent =
      "The reference could not be loaded (" + error.message + "). Reload the page, or read openapi.yaml.";
    return;
  }
  errorCodes = new Set(spec["x-error-codes"].map((entry) => entry.code));
  render();
  listen();
  followReading();
  if (location.hash) reveal("instant");
}

start();
