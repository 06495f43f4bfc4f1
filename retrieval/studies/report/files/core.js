// Elements, numbers and the page's state. Data reaches the page by text nodes and attributes only.
const SVG = "http://www.w3.org/2000/svg";

function filled(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") node.addEventListener(name, value);
    else if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value === true ? "" : value);
  }
  for (const child of children.flat()) {
    if (child !== null && child !== undefined) node.append(child);
  }
  return node;
}
const el = (name, attributes = {}, ...children) => filled(document.createElement(name), attributes, children);
const shape = (name, attributes = {}, ...children) => filled(document.createElementNS(SVG, name), attributes, children);

function data(id) {
  return JSON.parse(document.getElementById(id).textContent);
}

const state = { set: 0, measure: null, baseline: null, system: null, query: null, chosen: false };
const summary = data("summary");
const loaded = new Map(); // by script element's id: what it holds, read when it is first asked for

function part(id) {
  if (!loaded.has(id)) loaded.set(id, data(id));
  return loaded.get(id);
}
const current = () => part(`set-${state.set}`);
const details = () => part(`details-${state.set}`);

const colour = (index) => `c${index % 8}`;
const DASHES = ["", "7 3", "2 3", "8 3 2 3"];
const dashes = (index) => DASHES[Math.floor(index / 8) % 4] || (index >= 4 ? DASHES[index % 4] : "");

function number(value, digits = 3) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (size >= 1000) return minus(Math.round(value).toLocaleString("en"));
  return minus(size !== 0 && size < 1e-3 ? value.toExponential(1) : String(Number(value.toPrecision(digits))));
}
const minus = (text) => text.replaceAll("-", "−");
const whole = (value) => value.toLocaleString("en");
const fixed = (value, digits = 4) => (value === null || value === undefined ? "–" : minus(value.toFixed(digits)));
const signed = (value) => (value > 0 ? "+" : value < 0 ? "−" : "±") + Math.abs(value).toFixed(4);
// As Python's format specifications ".4f" and ",.1f".
function formatted(value, form) {
  if (value === null || value === undefined) return "–";
  if (typeof value === "string") return value;
  const digits = Number((/\.(\d+)f/.exec(form) || [0, 4])[1]);
  return value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits, useGrouping: form.includes(",") });
}

function choice(label, options, chosen, changed, id) {
  const select = el("select", { id, change: (event) => changed(event.target.value) });
  for (const [value, text] of options) select.append(el("option", { value, selected: String(value) === String(chosen) }, text));
  return el("label", {}, label, select);
}

// Sections: drawn when they come near the view, again when their width or the choices change.
const sections = [];
const watcher = new IntersectionObserver((entries) => {
  for (const entry of entries) if (entry.isIntersecting) draw(sections.find((each) => each.host === entry.target));
}, { rootMargin: "500px" });

function section(id, title, render) {
  const host = el("section", { id, class: "lazy", "aria-label": title });
  sections.push({ id, title, host, render, width: 0 });
  document.getElementById("main").append(host);
}

function draw(found) {
  watcher.unobserve(found.host);
  found.width = found.host.clientWidth;
  const parts = found.render(current());
  found.host.classList.remove("lazy");
  found.host.hidden = parts === null;
  sections.filter((each) => !each.host.hidden).forEach((each, at) => each.host.classList.toggle("first", at === 0));
  if (parts !== null) found.host.replaceChildren(el("h2", {}, found.title), ...parts.flat().filter(Boolean));
}

function redraw(...ids) {
  for (const found of sections) {
    if (ids.length && !ids.includes(found.id)) continue;
    found.host.hidden = false;
    watcher.unobserve(found.host);
    watcher.observe(found.host);
  }
}

const show = (id) => draw(sections.find((found) => found.id === id));

const space = (most = 1000) => Math.max(220, Math.min(most, document.getElementById("main").clientWidth));
// The width of a panel in a grid whose columns are at least `least` rem wide, 1.8 rem apart.
function panel(least) {
  const [width, gap] = [document.getElementById("main").clientWidth, 28.8];
  const columns = Math.max(1, Math.floor((width + gap) / (least * 16 + gap)));
  return Math.max(220, Math.min(620, Math.floor((width - gap * (columns - 1)) / columns)));
}
