// The page: asks /search as you type, then /explain for what moved each hit. All that comes from
// the service is shown as text.
"use strict";

const WAIT = 140; // milliseconds after a key
const SLOW = 1200; // after which the page says that it is still working
const at = (id) => document.getElementById(id);
const state = { info: null, asked: 0, stop: null, timer: 0, chosen: {}, explained: {} };

function make(tag, properties = {}, ...inside) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...inside);
  return element;
}

// A long name breaks behind a separator before it breaks in the middle of a word.
function breakable(name) {
  return name.split(/(?<=[/_.:])/).flatMap((part) => [part, make("wbr")]);
}

function key() {
  return sessionStorage.getItem("sluice-key") || "";
}

async function ask(path, body, signal) {
  const headers = {};
  if (key()) headers.authorization = `Bearer ${key()}`;
  if (body) headers["content-type"] = "application/json";
  const reply = await fetch(path, {
    method: body ? "POST" : "GET", headers, body: body && JSON.stringify(body), signal,
  });
  if (reply.ok) return reply.json();
  const answer = await reply.json().catch(() => ({})); // a proxy's is a page
  const error = new Error(`${answer.error ? answer.error.message : `status ${reply.status}`} ` +
    `(request_id ${reply.headers.get("x-request-id")})`);
  error.status = reply.status;
  throw error;
}

function say(text, kind = "") {
  at("status").textContent = text;
  at("status").className = kind;
}

function failed(error) {
  if (error.name === "AbortError") return;
  at("access").hidden = ![401, 403].includes(error.status); // 403: another key may do it
  say(error.status ? error.message : "The service does not answer.", "error");
}

async function start() {
  try {
    state.info = await ask("/info");
  } catch (error) {
    failed(error);
    return;
  }
  at("access").hidden = true;
  const info = state.info;
  at("name").textContent = info.name;
  document.title = `${info.name} · Sluice`;
  at("facts").textContent = info.documents === null
    ? "a model, without documents" : `${info.documents.toLocaleString("en")} documents`;
  at("judge").hidden = !info.judging;
  const main = info.pipelines.find((each) => each.default);
  at("pipeline").replaceChildren(...info.pipelines.map((each) =>
    make("option", { value: each.name, textContent: each.name, title: each.expression })));
  at("other").replaceChildren(make("option", { value: "", textContent: "nothing" }),
    ...info.pipelines.map((each) => make("option", { value: each.name, textContent: each.name })));
  if (main) at("pipeline").value = main.name;
  at("filters").replaceChildren(...info.filters.filter((each) => each.values).map((each) => {
    const choice = make("select", { name: each.name },
      make("option", { value: "", textContent: "any" }),
      ...each.values.map((value) =>
        make("option", { value: JSON.stringify(value), textContent: String(value) })));
    choice.addEventListener("change", () => {
      if (choice.value) state.chosen[each.name] = JSON.parse(choice.value);
      else delete state.chosen[each.name];
      soon(0);
    });
    return make("label", {}, `${each.name} `, choice);
  }));
  fromAddress();
  if (!info.pipelines.length) say("There is nothing to search here; /openapi.json says what is.");
  else soon(0);
}

function fromAddress() {
  const values = new URLSearchParams(location.search);
  at("query").value = values.get("q") || "";
  for (const [id, name] of [["pipeline", "pipeline"], ["other", "beside"], ["count", "k"]]) {
    const options = [...at(id).options].map((option) => option.value);
    if (options.includes(values.get(name))) at(id).value = values.get(name);
  }
  try {
    state.chosen = JSON.parse(values.get("where") || "{}") || {};
  } catch {
    state.chosen = {};
  }
  if (typeof state.chosen !== "object" || Array.isArray(state.chosen)) state.chosen = {};
  for (const choice of at("filters").querySelectorAll("select")) {
    choice.value = choice.name in state.chosen ? JSON.stringify(state.chosen[choice.name]) : "";
  }
}

function toAddress() {
  const values = new URLSearchParams();
  if (at("query").value) values.set("q", at("query").value);
  const main = state.info.pipelines.find((each) => each.default);
  if (main && at("pipeline").value !== main.name) values.set("pipeline", at("pipeline").value);
  if (at("other").value) values.set("beside", at("other").value);
  if (at("count").value !== "10") values.set("k", at("count").value);
  if (Object.keys(state.chosen).length) values.set("where", JSON.stringify(state.chosen));
  const text = values.toString();
  history.replaceState(null, "", text ? `/?${text}` : "/");
}

function soon(wait = WAIT) {
  clearTimeout(state.timer);
  state.timer = setTimeout(search, wait);
}

function request(pipeline) {
  const body = { query: at("query").value, pipeline, k: Number(at("count").value) };
  if (Object.keys(state.chosen).length) body.where = state.chosen;
  return body;
}

async function search() {
  if (!state.info) return;
  toAddress();
  if (state.stop) state.stop.abort();
  const query = at("query").value;
  const results = at("results");
  if (!query.trim()) {
    results.replaceChildren(make("p", { className: "empty", textContent: "Type to search." }));
    say("");
    return;
  }
  const stop = state.stop = new AbortController();
  const asked = ++state.asked;
  const names = [at("pipeline").value, at("other").value].filter(Boolean);
  const slow = setTimeout(() => at("status").classList.add("slow"), SLOW);
  const start = performance.now();
  if (!results.querySelector(".hit")) say("Searching …");
  try {
    const answers = await Promise.all(names.map((name) =>
      ask("/search", { ...request(name), highlight: true, fields: ["title"] }, stop.signal)));
    if (asked !== state.asked) return;
    const took = Math.round(performance.now() - start);
    show(answers);
    const notes = answers.map((each) => each.note).filter(Boolean);
    const count = answers[0].hits.length;
    say(`${count} ${count === 1 ? "hit" : "hits"} in ${took} ms${notes.length ? "; " + notes[0] : ""}`);
    await explain(names, asked, stop.signal);
  } catch (error) {
    if (asked === state.asked) failed(error);
  } finally {
    clearTimeout(slow);
    if (asked === state.asked) at("status").classList.remove("slow");
  }
}

function show(answers) {
  const results = at("results");
  const chosen = document.activeElement && document.activeElement.dataset.place;
  state.explained = {}; // of the query before
  results.className = answers.length > 1 ? "two" : "";
  const ranks = answers.map((answer) => new Map(answer.hits.map((hit) => [hit.id, hit.rank])));
  results.replaceChildren(...answers.map((answer, column) => {
    const other = answers.length > 1 ? ranks[1 - column] : null;
    const name = answers.length > 1 ? answers[1 - column].pipeline : "";
    const most = Math.max(...answer.hits.map((hit) => hit.score), 0);
    const least = Math.min(...answer.hits.map((hit) => hit.score), 0);
    const list = make("ol", { className: "hits" }, ...answer.hits.map((hit) =>
      make("li", {}, card(hit, column, (hit.score - least) / (most - least || 1), other, name))));
    return make("section", { className: "column", ariaLabel: answer.pipeline },
      make("h2", { textContent: answer.pipeline }), times(answer),
      answer.hits.length ? list
        : make("p", { className: "empty", textContent: "No document was found." }));
  }));
  if (chosen) results.querySelector(`[data-place="${chosen}"]`)?.focus();
}

function times(answer) {
  return make("ul", { className: "stages" }, ...answer.stages.map((stage) =>
    make("li", {}, make("b", { textContent: stage.name }),
      ` ${stage.milliseconds.toFixed(1)} ms, ${stage.documents.toLocaleString("en")} documents`)));
}

function card(hit, column, share, other, name) {
  const button = make("button", { className: "hit", type: "button" });
  button.dataset.id = hit.id;
  button.dataset.place = `${column}-${hit.rank}`;
  const bar = make("span");
  bar.style.width = `${Math.max(1, 100 * share)}%`;
  const notes = make("div", { className: "notes" });
  if (other) {
    const rank = other.get(hit.id);
    notes.append(rank === undefined
      ? make("span", { className: "note", textContent: `not among the hits of ${name}` })
      : moved(`against ${name}: `, rank, hit.rank));
  }
  button.append(
    make("div", { className: "top" }, make("span", { className: "rank", textContent: hit.rank }),
      make("span", { className: "title" }, ...breakable(hit.title || hit.id)),
      make("span", { className: "score", textContent: hit.score.toFixed(4) })),
    make("div", { className: "track", ariaHidden: "true" }, bar),
    marked("p", hit.snippet), notes);
  button.addEventListener("click", () => open(hit.id, column));
  return button;
}

function moved(before, from, to) {
  const kind = to < from ? "up" : to > from ? "down" : "";
  const arrow = to < from ? "↑" : to > from ? "↓" : "=";
  return make("span", { className: `note ${kind}`, textContent: `${before}${arrow} ${from} → ${to}` });
}

function marked(tag, snippet) {
  const element = make(tag);
  if (!snippet) return element;
  // Places are of characters as Python counts them, so that an emoji is one.
  const letters = [...snippet.text];
  let done = 0;
  for (const [start, end] of snippet.marks) {
    element.append(letters.slice(done, start).join(""),
      make("mark", { textContent: letters.slice(start, end).join("") }));
    done = end;
  }
  element.append(letters.slice(done).join(""));
  return element;
}

// The words that tokens of the query met: the more one adds to the score, the stronger its colour.
function met(snippet) {
  const element = make("p");
  const letters = [...snippet.text];
  const most = Math.max(...snippet.words.map((word) => word.adds));
  let done = 0;
  for (const word of snippet.words) {
    if (word.start < done) continue;
    const level = Math.max(1, Math.ceil((4 * Math.max(0, word.adds)) / (most || 1)));
    element.append(letters.slice(done, word.start).join(""), make("mark", { className: `met${level}`,
      title: `met by ${word.tokens.join(", ")}: adds ${word.adds.toFixed(3)}`,
      textContent: letters.slice(word.start, word.end).join("") }));
    done = word.end;
  }
  element.append(letters.slice(done).join(""));
  return element;
}

async function explain(names, asked, signal) {
  const answers = await Promise.all(names.map((name) => ask("/explain", request(name), signal)));
  if (asked !== state.asked) return;
  answers.forEach((answer, column) => {
    for (const path of answer.documents) {
      state.explained[`${column}-${path.id}`] = path;
      for (const button of at("results").querySelectorAll(".hit")) {
        if (button.dataset.id !== path.id || !button.dataset.place.startsWith(`${column}-`)) continue;
        const notes = button.querySelector(".notes");
        if (path.met) button.querySelector("p").replaceWith(met(path.met));
        if (path.decided) notes.append(moved(`${path.decided[0]}: `, path.decided[1], path.decided[2]));
        if (path.found_by.length) {
          notes.append(make("span", { className: "note", textContent: `found by ${path.found_by.join(", ")}` }));
        }
      }
    }
  });
}

async function open(id, column) {
  try {
    const found = await ask(`/documents/?id=${encodeURIComponent(id)}`);
    at("document-title").replaceChildren(...breakable(found.title || found.id));
    at("document-metadata").replaceChildren(...[["id", found.id], ...Object.entries(found.metadata)]
      .flatMap(([name, value]) => [make("dt", { textContent: name }), make("dd", {}, ...breakable(String(value)))]));
    at("document-text").textContent = found.text;
    at("document-path").replaceChildren(...path(state.explained[`${column}-${id}`]));
    at("document").showModal();
    at("document").scrollTop = 0;
  } catch (error) {
    failed(error);
  }
}

function path(explained) {
  if (!explained) return [];
  const head = (...names) => make("tr", {}, ...names.map((name, place) =>
    make("th", { textContent: name, scope: "col", className: place ? "number" : "" })));
  const row = (...values) => make("tr", {}, ...values.map((value, place) =>
    make("td", { textContent: value, className: place ? "number" : "" })));
  const parts = [make("h3", { textContent: "What each stage made of it" }),
    make("table", {}, head("stage", "rank", "score"), ...explained.places.map((place) =>
      row(place.step, place.rank === null ? "-" : place.rank,
        place.score === null ? "-" : place.score.toFixed(4))))];
  for (const [name, terms] of Object.entries(explained.terms)) {
    if (!terms.length) continue;
    parts.push(make("h3", { textContent: `What each term adds in ${name}` }),
      make("table", {}, head("term", "adds"), ...terms.map((term) =>
        row(term.term, term.contribution.toFixed(3)))));
  }
  for (const [name, matches] of Object.entries(explained.matches)) {
    const own = matches.filter((match) => match.in_query);
    const rest = matches.filter((match) => !match.in_query);
    const number = (value) => value.toFixed(3);
    parts.push(make("h3", { textContent: `Which tokens met in ${name}` }),
      make("table", {}, head("query", "document", "adds"),
        ...own.map((match) => row(match.query_token, match.document_token, number(match.similarity))),
        ...(rest.length ? [row(`${rest.length} masks and marks`, "",
          number(rest.reduce((sum, match) => sum + match.similarity, 0)))] : [])));
  }
  return parts;
}

function step(by) {
  const hits = [...at("results").querySelectorAll(".hit")];
  if (!hits.length) return;
  const place = hits.indexOf(document.activeElement);
  if (place + by < 0) at("query").focus();
  else hits[Math.min(place + by, hits.length - 1)].focus();
}

at("form").addEventListener("submit", (event) => { event.preventDefault(); soon(0); });
at("query").addEventListener("input", () => soon());
for (const id of ["pipeline", "other", "count"]) at(id).addEventListener("change", () => soon(0));
at("access").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem("sluice-key", at("key").value.trim());
  at("key").value = "";
  start();
});
at("close").addEventListener("click", () => at("document").close());
at("document").addEventListener("click", (event) => {
  if (event.target === at("document")) at("document").close();
});
document.addEventListener("keydown", (event) => {
  if (at("document").open || event.ctrlKey || event.metaKey || event.altKey) return;
  const typing = document.activeElement.matches("input, select");
  if (event.key === "/" && !typing) {
    event.preventDefault();
    at("query").focus();
    at("query").select();
  } else if (["ArrowDown", "ArrowUp"].includes(event.key) && !document.activeElement.matches("select")) {
    event.preventDefault();
    step(event.key === "ArrowDown" ? 1 : -1);
  }
});
addEventListener("popstate", () => { fromAddress(); soon(0); });
start();
