// Build elements. Untrusted text becomes text nodes only; this page never uses innerHTML.

const INVISIBLE = /[\u0000-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202f\u2060-\u206f\ufeff\ufff9-\uffff]/g;

// Return text with invisible characters, and those that change the text direction, written as
// their code.
export function visible(text) {
  return String(text ?? "").replace(INVISIBLE, (c) =>
    `⟨U+${c.charCodeAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`);
}

// Create an element. Attributes: `on…` are listeners; null or false is left out, except for aria-….
export function h(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) set(made, name, value);
  made.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return made;
}

export function set(element, name, value) {
  if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
  else if (typeof value === "boolean" && name.startsWith("aria-")) element.setAttribute(name, String(value));
  else if (value === false || value === null || value === undefined) element.removeAttribute(name);
  else element.setAttribute(name, value === true ? "" : String(value));
}

// Untrusted text, isolated so that its direction cannot change that of its surroundings.
export function text(value, attributes = {}) {
  const shown = visible(value);
  return h("bdi", { ...attributes, title: attributes.title ?? (shown.length > 24 ? shown : null) }, shown);
}

// Change the text of an element only if it differs: most updates change few cells.
export function put(element, value) {
  if (element.textContent !== value) element.textContent = value;
}

const SVG = "http://www.w3.org/2000/svg";
const ELEMENTS = new Set(["svg", "g", "a", "rect", "path", "line", "circle", "text", "title", "defs", "pattern"]);
const ATTRIBUTES = new Set([
  "viewBox", "width", "height", "class", "role", "aria-label", "x", "y", "x1", "x2", "y1", "y2", "rx", "r",
  "cx", "cy", "d", "id", "text-anchor", "patternUnits", "patternTransform", "points", "fill",
]);

// Rebuild a drawing of the server from the elements and attributes that drawings may have.
export function svg(markup) {
  const parsed = new DOMParser().parseFromString(markup, "image/svg+xml").documentElement;
  if (parsed.localName !== "svg") return h("p", {}, "The drawing cannot be shown.");
  const made = copy(parsed);
  // The content of an image is hidden from screen readers; links must not be.
  if (made.querySelector("a")) made.setAttribute("role", "group");
  return made;
}

function copy(source) {
  const made = document.createElementNS(SVG, source.localName);
  for (const { name, value } of source.attributes) {
    if (ATTRIBUTES.has(name)) made.setAttribute(name, value);
    else if (name === "href" && value.startsWith("#/")) made.setAttribute("href", value);
  }
  for (const child of source.childNodes) {
    if (child.nodeType === Node.TEXT_NODE) made.append(visible(child.data.replace(/[\u2068\u2069]/g, "")));
    else if (child.nodeType === Node.ELEMENT_NODE && ELEMENTS.has(child.localName)) made.append(copy(child));
  }
  return made;
}

let noticeTimer;

// Show a message to the user and announce it to screen readers.
export function notify(message, kind = "") {
  const place = document.getElementById("notices");
  place.replaceChildren(h("div", { class: `notice ${kind}` }, message));
  clearTimeout(noticeTimer);
  noticeTimer = setTimeout(() => place.replaceChildren(), 8000);
}
