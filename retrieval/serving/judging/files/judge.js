// The judging page: asks /judge for what is next, and sends each grade before it goes on. All that
// comes from the service is shown as text.
"use strict";

const SLOW = 1200; // milliseconds after which the page says that it is still working
const at = (id) => document.getElementById(id);
const state = { all: null, task: null, place: 0, busy: false, assessor: "" };

function make(tag, properties = {}, ...inside) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...inside);
  return element;
}

function key() {
  return sessionStorage.getItem("sluice-key") || "";
}

async function send(path, body) {
  const headers = {};
  if (key()) headers.authorization = `Bearer ${key()}`;
  if (body) headers["content-type"] = "application/json";
  const reply = await fetch(path, {
    method: body ? "POST" : "GET", headers, body: body && JSON.stringify(body),
  });
  if (reply.ok) return reply;
  const answer = await reply.json().catch(() => ({})); // a proxy's is a page
  const error = new Error(`${answer.error ? answer.error.message : `status ${reply.status}`} ` +
    `(request_id ${reply.headers.get("x-request-id")})`);
  error.status = reply.status;
  error.type = answer.error && answer.error.type;
  throw error;
}

const ask = async (path, body) => (await send(path, body)).json();

function asked(path, values) {
  return `${path}?${new URLSearchParams(Object.entries(values).filter(([, value]) => value))}`;
}

function say(text, kind = "") {
  at("status").textContent = text;
  at("status").className = kind;
}

function failed(error) {
  at("access").hidden = ![401, 403].includes(error.status); // 403: another key may do it
  if (error.type === "not_judging") {
    nothing("Nothing is judged here.", "Start the service with --judge and a file of queries:",
      "sluice serve FOLDER --judge queries.txt");
    say("");
    return;
  }
  say(error.status ? error.message : "The service does not answer; nothing was added.", "error");
}

// One thing at a time: a key that is pressed meanwhile has no effect.
async function alone(work) {
  if (state.busy) return;
  state.busy = true;
  const slow = setTimeout(() => at("status").classList.add("slow"), SLOW);
  try {
    await work();
  } catch (error) {
    failed(error);
  } finally {
    clearTimeout(slow);
    at("status").classList.remove("slow");
    state.busy = false;
  }
}

const mine = () => (state.all && state.all.named ? "" : state.assessor);

async function start() {
  state.assessor = localStorage.getItem("sluice-assessor") || "";
  state.all = await ask(asked("/judge/queries", { assessor: state.assessor })).catch((error) => {
    if (error.status !== 403 || !state.assessor) throw error;
    state.assessor = ""; // the name of before: the key has its own
    return ask("/judge/queries");
  });
  at("access").hidden = true;
  if (state.all.named) state.assessor = state.all.assessor;
  document.title = "Judge · Sluice";
  at("who").hidden = Boolean(state.assessor);
  at("more").hidden = !state.assessor;
  at("grades").replaceChildren(...state.all.grades.map(gradeButton));
  if (!state.assessor) {
    at("assessor").focus();
    const count = state.all.queries.length;
    nothing(`${count} ${count === 1 ? "query" : "queries"} to judge`,
      "You see a query, and one by one the documents that were found for it, in no order that means anything.",
      "Say how well each answers the query. Everything is kept at once; you can stop and go on at any time.");
    return;
  }
  at("facts").textContent = state.assessor;
  const query = new URLSearchParams(location.search).get("query");
  await open(state.all.queries.some((each) => each.id === query) ? query : null);
}

function gradeButton(each) {
  const button = make("button", { type: "button", className: `grade${each.grade}`,
    title: each.meaning }, make("b", { textContent: each.grade }), make("span", { textContent: each.name }));
  button.setAttribute("aria-keyshortcuts", each.grade);
  button.addEventListener("click", () => alone(() => judge({ grade: each.grade })));
  return button;
}

const isOpen = (each) => each.grade === null && !each.skipped;

// Shows a query, or the first that is not finished.
async function open(query, documentId = null) {
  const task = await ask(asked("/judge/task", { assessor: mine(), query }));
  if (!task.query) {
    history.replaceState(null, "", "/judge");
    finished();
    return;
  }
  state.task = task;
  refresh(task.query);
  history.replaceState(null, "", `/judge?query=${encodeURIComponent(task.query.id)}`);
  const named = task.documents.findIndex((each) => each.id === documentId);
  const first = task.documents.findIndex(isOpen);
  show(named >= 0 ? named : Math.max(0, first));
}

function refresh(query) {
  const place = state.all.queries.findIndex((each) => each.id === query.id);
  if (place >= 0) state.all.queries[place] = query; // else one of before
  if (state.task) state.task.query = query;
  const done = state.all.queries.filter(isDone).length;
  const judged = state.all.queries.reduce((sum, each) => sum + each.judged, 0);
  at("progress").hidden = false;
  at("progress-text").textContent = `${done} of ${state.all.queries.length} queries done, ${judged} ${judged === 1 ? "document" : "documents"} judged`;
  at("progress-bar").max = state.all.queries.length;
  at("progress-bar").value = state.all.queries.reduce((sum, each) => sum + (isDone(each) ? 1
    : each.candidates ? (each.judged + each.skipped) / each.candidates : 0), 0);
}

const isDone = (query) => query.candidates !== null && query.judged + query.skipped >= query.candidates;

function nothing(title, ...lines) {
  at("judged").hidden = true;
  at("nothing").hidden = false;
  at("nothing").replaceChildren(make("h2", { textContent: title }),
    ...lines.map((line) => make("p", { textContent: line })));
}

function finished() {
  state.task = null;
  const judged = state.all.queries.reduce((sum, each) => sum + each.judged, 0);
  const skipped = state.all.queries.filter((each) => each.skipped);
  nothing("All done. Thank you!", `${judged} ${judged === 1 ? "document" : "documents"} of ${state.all.queries.length} ${state.all.queries.length === 1 ? "query" : "queries"} judged by ${state.assessor}.`);
  if (skipped.length) {
    const count = skipped.reduce((sum, each) => sum + each.skipped, 0);
    at("nothing").append(make("p", { textContent: `${count} ${count === 1 ? "document was" : "documents were"} skipped, the first in ${skipped[0].id}.` }));
    const again = make("button", { type: "button", textContent: "Look at what was skipped" });
    again.addEventListener("click", () => alone(() => reopen(skipped[0].id)));
    at("nothing").append(again, " ");
  }
  const button = make("button", { type: "button", textContent: "Results" });
  button.addEventListener("click", () => alone(agreement));
  at("nothing").append(button);
  say("");
}

async function reopen(query) {
  await open(query);
  const first = state.task.documents.findIndex((each) => each.skipped);
  if (first >= 0) show(first);
}

function show(place) {
  const { query, documents } = state.task;
  state.place = place;
  at("nothing").hidden = true;
  at("judged").hidden = false;
  const number = state.all.queries.findIndex((each) => each.id === query.id) + 1;
  at("query-place").textContent = `Query ${query.id}, ${number} of ${state.all.queries.length}`;
  at("query-text").textContent = query.text;
  at("candidates").replaceChildren(...documents.map(pill));
  at("grading").hidden = !documents.length;
  const found = documents[place];
  if (!found) {
    at("candidate-title").textContent = "No pipeline found anything for this query.";
    at("candidate-text").textContent = "";
    at("candidate-metadata").replaceChildren();
    return;
  }
  at("candidate-title").textContent = found.title || found.id;
  at("candidate-metadata").replaceChildren(...Object.entries(found.metadata).flatMap(([name, value]) =>
    [make("dt", { textContent: name }), make("dd", { textContent: value })]));
  at("candidate-text").replaceChildren(...marked(found));
  at("comment").value = found.comment;
  [...at("grades").children].forEach((button, grade) =>
    button.setAttribute("aria-pressed", String(found.grade === grade)));
  at("skip").setAttribute("aria-pressed", String(found.skipped));
  scrollTo(0, 0);
  at("candidate").focus({ preventScroll: true });
}

function pill(found, place) {
  const said = found.grade !== null ? `grade ${found.grade}` : found.skipped ? "skipped" : "not judged";
  const button = make("button", { type: "button", className: found.grade === null ? (found.skipped ? "skipped" : "") : `grade${found.grade}`,
    textContent: found.grade !== null ? found.grade : found.skipped ? "–" : "·" });
  button.ariaLabel = `Document ${place + 1}: ${said}`;
  button.title = button.ariaLabel;
  if (place === state.place) button.setAttribute("aria-current", "true");
  button.addEventListener("click", () => show(place));
  return make("li", {}, button);
}

function marked(found) {
  // Places are of characters as Python counts them, so that an emoji is one.
  const letters = found.marks.length ? [...found.text] : [];
  const parts = [];
  let done = 0;
  for (const [start, end] of found.marks) {
    parts.push(letters.slice(done, start).join(""), make("mark", { textContent: letters.slice(start, end).join("") }));
    done = end;
  }
  parts.push(letters.length ? letters.slice(done).join("") : found.text);
  if (found.cut) parts.push(make("p", { className: "empty", textContent: "The document is longer; its end is not shown." }));
  return parts;
}

async function judge(said) {
  if (!state.task || !state.task.documents.length) return;
  const query = state.task.query.id;
  const found = state.task.documents[state.place];
  const answer = await ask("/judge/judgements", { assessor: mine(), query, document: found.id,
    grade: null, comment: at("comment").value, ...said });
  taken(found, answer);
  const name = found.title || found.id;
  say(answer.skipped ? `Skipped: ${name}` : `Grade ${answer.grade}: ${name}`);
  await onwards();
}

function taken(found, answer) {
  Object.assign(found, { grade: answer.grade, skipped: answer.skipped, comment: answer.comment });
  refresh(answer.query);
}

// Goes to the next document that is not judged, behind this one first, then to the next query.
async function onwards() {
  const { documents } = state.task;
  const rest = documents.map((_, step) => (state.place + 1 + step) % documents.length);
  const next = rest.find((place) => isOpen(documents[place]));
  if (next === undefined) await open(null);
  else show(next);
}

async function undo() {
  const answer = await ask("/judge/undo", { assessor: mine() });
  if (!state.task || state.task.query.id !== answer.query.id) {
    await open(answer.query.id, answer.document);
  } else {
    const place = state.task.documents.findIndex((each) => each.id === answer.document);
    if (place >= 0) taken(state.task.documents[place], answer);
    show(Math.max(0, place));
  }
  say("Taken back.");
}

// Adds a comment to a grade that was given; without one it goes with the next grade.
async function comment() {
  const found = state.task.documents[state.place];
  at("candidate").focus();
  if (found.grade === null && !found.skipped) return;
  taken(found, await ask("/judge/judgements", { assessor: mine(), query: state.task.query.id,
    document: found.id, grade: found.grade, skipped: found.skipped, comment: at("comment").value }));
  say("The comment was added.");
}

function step(by) {
  if (!state.task || !state.task.documents.length) return;
  const place = state.place + by;
  if (place >= 0 && place < state.task.documents.length) show(place);
}

async function stepQuery(by) {
  if (!state.all.queries.length) return;
  const now = state.task ? state.all.queries.findIndex((each) => each.id === state.task.query.id) : state.all.queries.length;
  const next = state.all.queries[now + by];
  if (next) await open(next.id);
}

function queries() {
  at("queries-list").replaceChildren(...state.all.queries.map((each) => {
    const count = each.candidates === null ? (each.judged ? `${each.judged} judged` : "not begun") : `${each.judged} of ${each.candidates}${each.skipped ? `, ${each.skipped} skipped` : ""}`;
    const button = make("button", { type: "button" }, make("span", { textContent: each.text }), make("span", { textContent: count }));
    if (state.task && state.task.query.id === each.id) button.setAttribute("aria-current", "true");
    button.addEventListener("click", () => { at("queries").close(); alone(() => open(each.id)); });
    return make("li", {}, button);
  }));
  at("queries").showModal();
  at("queries-list").querySelector("[aria-current]")?.focus();
}

const figure = (value) => (value === null || value === undefined ? "-" : value.toFixed(3));

function table(heads, rows) {
  const cell = (tag, value, place) => make(tag, { textContent: value, className: place ? "number" : "" });
  return make("table", {},
    make("thead", {}, make("tr", {}, ...heads.map((head, place) => { const th = cell("th", head, place); th.scope = "col"; return th; }))),
    make("tbody", {}, ...rows.map((row) => make("tr", {}, ...row.map((value, place) => cell("td", value, place))))));
}

async function agreement() {
  const found = await ask("/judge/agreement");
  const parts = [];
  if (found.assessors.length) {
    parts.push(table(["assessor", "judged", "skipped", "0", "1", "2", "3"],
      found.assessors.map((each) => [each.name, each.judged, each.skipped, ...each.grades])));
  } else {
    parts.push(make("p", { className: "empty", textContent: "Nobody has judged anything yet." }));
  }
  if (found.shared) {
    parts.push(make("h3", { textContent: `Of the ${found.shared} documents that two or more judged` }),
      table(["", "alpha"], Object.entries(found.alpha).map(([scale, value]) => [`Krippendorff's alpha, ${scale}`, figure(value)])),
      table(["two", "both judged", "same", "kappa", "weighted"], found.two.map((each) =>
        [`${each.first}, ${each.second}`, each.pairs, `${Math.round(100 * each.same)} %`, figure(each.kappa), figure(each.weighted_kappa)])));
  } else if (found.assessors.length) {
    parts.push(make("p", { className: "empty", textContent: "No document was judged by two people yet: how they agree is unknown." }));
  }
  at("agreement-figures").replaceChildren(...parts);
  const only = at("only").value;
  at("only").replaceChildren(make("option", { value: "", textContent: "all assessors" }),
    ...found.assessors.map((each) => make("option", { value: each.name, textContent: each.name })));
  if ([...at("only").options].some((option) => option.value === only)) at("only").value = only;
  at("export-status").textContent = "";
  if (!at("agreement").open) at("agreement").showModal();
}

async function save() {
  const status = at("export-status");
  status.className = "";
  try {
    const values = { rule: at("rule").value, format: at("form").value, assessor: at("only").value };
    const reply = await send(asked("/judge/qrels", values));
    const address = URL.createObjectURL(await reply.blob());
    const name = values.format === "trec" ? "qrels.trec" : "qrels.tsv";
    make("a", { href: address, download: name }).click();
    setTimeout(() => URL.revokeObjectURL(address), 10000);
    status.textContent = `Saved as ${name}.`;
  } catch (error) {
    status.className = "error";
    status.textContent = error.status ? error.message : "The service does not answer.";
  }
}

at("access").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem("sluice-key", at("key").value.trim());
  at("key").value = "";
  alone(start);
});
at("who").addEventListener("submit", (event) => {
  event.preventDefault();
  const name = at("assessor").value.trim();
  if (!name) return;
  localStorage.setItem("sluice-assessor", name);
  say("");
  alone(start);
});
at("export").addEventListener("submit", (event) => { event.preventDefault(); save(); });
at("skip").addEventListener("click", () => alone(() => judge({ skipped: true })));
at("undo").addEventListener("click", () => alone(undo));
at("comment").addEventListener("keydown", (event) => {
  if (event.key === "Escape") at("candidate").focus();
  if (event.key === "Enter") { event.preventDefault(); alone(comment); }
});
at("all-queries").addEventListener("click", () => { if (state.assessor && state.all) queries(); });
at("all-agreement").addEventListener("click", () => alone(agreement));
at("all-keys").addEventListener("click", () => at("keys").showModal());
for (const dialog of document.querySelectorAll("dialog")) {
  dialog.querySelector(".close").addEventListener("click", () => dialog.close());
  dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
}
const KEYS = {
  s: () => alone(() => judge({ skipped: true })), u: () => alone(undo),
  j: () => step(1), k: () => step(-1), n: () => alone(() => stepQuery(1)), p: () => alone(() => stepQuery(-1)),
  c: () => { if (state.task) at("comment").focus(); },
  q: queries, r: () => alone(agreement), "?": () => at("keys").showModal(),
};
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.repeat) return;
  if (document.querySelector("dialog[open]") || document.activeElement.matches("input, select")) return;
  if (event.key === "?" || (state.all && state.assessor)) {
    const grade = state.all && state.all.grades.find((each) => String(each.grade) === event.key);
    const work = grade ? () => alone(() => judge({ grade: grade.grade })) : Object.hasOwn(KEYS, event.key) ? KEYS[event.key] : null;
    if (work) { event.preventDefault(); work(); }
  }
});
alone(start);
