// Differences query by query, and one query with its documents.
const ofQuery = (set, measure, system, at) => set.perQuery.values[measure][system][at];

function ordered(set) {
  const values = set.perQuery.values[state.measure];
  const [one, base] = [values[state.system], values[state.baseline]];
  return set.perQuery.ids.map((_, at) => ({ at, difference: one[at] - base[at] }))
    .sort((a, b) => b.difference - a.difference || a.at - b.at);
}

// The query that differs most and has its documents in the page: a gain, or with `sign` -1 a loss.
function extreme(set, order, sign = 1) {
  const detailed = new Set(set.detailed);
  const ranked = sign > 0 ? order : [...order].reverse();
  return (ranked.find((each) => detailed.has(set.perQuery.places[each.at])) || ranked[0]).at;
}

function differencePlot(set, order) {
  const width = space();
  const [height, count] = [240, order.length];
  const most = Math.max(...order.map((each) => Math.abs(each.difference)), 0.01);
  const wins = order.filter((each) => each.difference > 0).length;
  const losses = order.filter((each) => each.difference < 0).length;
  const label = `${state.measure} of ${state.system} minus ${state.baseline}, query by query: ${wins} better, ${count - wins - losses} equal, ${losses} worse. Arrow keys choose a query.`;
  const made = frame(width, height, { domain: [0, count], label: "queries, largest gain first" }, { domain: [-most, most], label: `difference in ${state.measure}`, form: (v) => fixed(v, 2) }, label);
  const detailed = new Set(set.detailed);
  const step = (made.area.right - made.area.left) / count;
  const zero = made.Y(0);
  order.forEach((each, at) => {
    const y = made.Y(each.difference);
    const kind = each.difference > 0 ? "gain" : each.difference < 0 ? "loss" : "same";
    made.root.append(shape("rect", {
      class: detailed.has(set.perQuery.places[each.at]) ? kind : `${kind} bare`, "data-at": each.at,
      x: (made.area.left + at * step).toFixed(2), width: Math.max(0.6, step > 3 ? step - 1 : step).toFixed(2),
      y: (kind === "same" ? zero - 1 : Math.min(y, zero)).toFixed(2), height: Math.max(kind === "same" ? 2 : 0.8, Math.abs(y - zero)).toFixed(2),
    }));
  });
  made.root.append(shape("line", { class: "axis", x1: made.area.left, x2: made.area.right, y1: zero, y2: zero }));
  const cursor = shape("rect", { class: "chosen", y: made.area.top, height: made.area.bottom - made.area.top, width: Math.max(5, step + 2), rx: 2, visibility: "hidden" });
  made.root.append(cursor);
  filled(made.root, { class: "pick", tabindex: 0, role: "slider", "aria-valuemin": 1, "aria-valuemax": count, "aria-orientation": "horizontal" }, []);
  const place = () => order.findIndex((each) => each.at === state.query);
  const follow = () => {
    const at = Math.max(0, place());
    const { at: query, difference } = order[at];
    filled(made.root, { "aria-valuenow": at + 1, "aria-valuetext": `query ${at + 1} of ${count}: ${set.perQuery.ids[query]}, ${signed(difference)}` }, []);
    filled(cursor, { x: made.area.left + (at + 0.5) * step - Math.max(5, step + 2) / 2, visibility: place() < 0 ? "hidden" : "visible" }, []);
  };
  const choose = (at) => {
    state.query = order[Math.max(0, Math.min(count - 1, at))].at;
    state.chosen = true;
    follow();
    showQuery();
  };
  made.root.addEventListener("click", (event) => choose(Math.floor((event.clientX - made.root.getBoundingClientRect().left - made.area.left) / step)));
  const page = Math.max(1, Math.round(count / 20));
  const steps = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1, PageUp: -page, PageDown: page };
  made.root.addEventListener("keydown", (event) => {
    const ends = { Home: 0, End: count - 1 };
    if (!(event.key in steps) && !(event.key in ends)) return;
    event.preventDefault();
    choose(ends[event.key] ?? (place() < 0 ? 0 : place() + steps[event.key]));
  });
  follow();
  return { root: made.root, wins, losses, count };
}

section("queries", "Query by query", (set) => {
  const names = set.systems.map((each) => each.name);
  if (!names.includes(state.system) || (state.system === state.baseline && names.length > 1)) state.system = [...names].reverse().find((name) => name !== state.baseline) || names[0];
  const order = ordered(set);
  if (!state.chosen) state.query = extreme(set, order);
  const plot = differencePlot(set, order);
  const input = el("input", { type: "search", placeholder: "id or words", input: () => list() });
  const found = el("ul", { class: "found", hidden: true });
  const list = () => {
    const wanted = input.value.trim().toLowerCase();
    const matching = set.perQuery.ids.map((id, at) => at).filter((at) => `${set.perQuery.ids[at]} ${set.perQuery.texts[at]}`.toLowerCase().includes(wanted));
    found.hidden = !wanted;
    found.replaceChildren(...(wanted ? queryButtons(set, matching.slice(0, 50), matching.length) : []));
  };
  const sampled = set.queryCount > plot.count ? ` Drawn are ${whole(plot.count)} of ${whole(set.queryCount)} queries: those with documents, and an even sample.` : "";
  return [
    el("div", { class: "choices" },
      choice("System", names.map((name) => [name, name]), state.system, (value) => { state.system = value; show("queries"); }, "system"),
      choice("against", names.map((name) => [name, name]), state.baseline, (value) => setBaseline(value), "against"),
      [["Largest gain", 1], ["Largest loss", -1]].map(([text, sign]) => {
        const at = extreme(set, order, sign);
        return el("button", { type: "button", "data-query": at, "aria-pressed": String(at === state.query), click: () => openQuery(at) }, text);
      }),
      el("label", {}, "Find a query", input)),
    found,
    captioned(plot.root, `${state.system} minus ${state.baseline}.`,
      `${whole(plot.wins)} queries are better, ${whole(plot.count - plot.wins - plot.losses)} equal, ${whole(plot.losses)} worse. ` +
      `Choose a bar, or move with the arrow keys. The page has documents for ${whole(set.detailed.length)} of ${whole(set.queryCount)} queries, drawn in full colour: ` +
      `those that differ most, failures, and an even sample.${sampled}`,
      swatches([["gainbox", `${state.system} better`], ["lossbox", `${state.baseline} better`], ["samebox", "equal"]])),
    el("div", { id: "detail", role: "region", "aria-label": "The chosen query", tabindex: -1 }, ...queryParts(set)),
  ];
});

function queryButtons(set, chosen, total) {
  const rows = chosen.map((at) => el("li", {}, el("button", { type: "button", class: "link", click: () => openQuery(at) },
    el("span", { class: "mono quiet" }, set.perQuery.ids[at]), "  ", set.perQuery.texts[at] || "(no text)")));
  if (total > chosen.length) rows.push(el("li", { class: "quiet" }, `and ${whole(total - chosen.length)} more`));
  return rows.length ? rows : [el("li", { class: "quiet" }, "none")];
}

function openQuery(at) {
  state.query = at;
  state.chosen = true;
  show("queries");
  const detail = document.getElementById("detail");
  detail.scrollIntoView({ block: "start" });
  detail.focus({ preventScroll: true });
}

function showQuery() {
  const detail = document.getElementById("detail");
  if (detail) detail.replaceChildren(...queryParts(current()));
  document.querySelectorAll("#queries button[data-query]").forEach((each) => each.setAttribute("aria-pressed", String(Number(each.dataset.query) === state.query)));
}

const gradeBadge = (grade) => el("span", { class: grade > 0 ? "grade good" : "grade", title: grade === null ? "unjudged" : `grade ${grade}` }, grade === null ? "?" : String(grade));

function termList(terms, marked) {
  return el("ul", { class: "terms" }, terms.map(([term, weight, added]) => el("li", { class: added ? "new" : null, title: added ? "not in the query's text" : null },
    added && marked ? `+ ${term} ` : `${term} `, el("span", {}, number(weight)))));
}

// Which token of the document each of the query's met: the stronger among those of the query's
// documents, the darker. Cosines lie close together, so that their range is what is shown.
const HEATS = 8;
function tokenStrip(retriever, found, number_) {
  const pairs = found.documents[number_];
  const all = Object.values(found.documents).flatMap((each) => each.map((pair) => pair[1]));
  const least = Math.min(...all), range = Math.max(...all) - least || 1;
  const rest = found.others ? `; ${whole(found.others)} masks and marks, which are not of its text, add ${number(found.rest[number_])}` : "";
  const more = found.count > found.tokens.length ? `, the first ${found.tokens.length} of the query's ${whole(found.count)} tokens` : "";
  return el("div", {}, el("p", {}, `${retriever}: the query's tokens, and the document's that they met${more}${rest}`),
    el("ol", { class: "strip" }, pairs.map(([token, similarity], place) => el("li", {
      class: `heat${Math.round((HEATS * (similarity - least)) / range)}`,
      title: `${found.tokens[place]} met ${token}: ${number(similarity)}` },
      el("b", {}, found.tokens[place]), el("span", {}, token)))));
}

function queryParts(set) {
  const at = state.query;
  const place = set.perQuery.places[at];
  const names = set.systems.map((each) => each.name);
  const parts = [
    el("h3", {}, set.perQuery.texts[at] || "(no text)"),
    el("p", { class: "quiet small" }, "Query ", el("span", { class: "mono" }, set.perQuery.ids[at])),
    el("div", { class: "scroll" }, el("table", {},
      el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "system"), set.measures.map((measure) => el("th", { scope: "col" }, measure)), el("th", { scope: "col" }, "difference"))),
      el("tbody", {}, names.map((name) => el("tr", { class: name === state.system ? "current" : null }, el("th", { scope: "row" }, name),
        set.measures.map((measure) => el("td", {}, fixed(ofQuery(set, measure, name, at)))),
        el("td", {}, name === state.baseline ? "baseline" : signed(ofQuery(set, state.measure, name, at) - ofQuery(set, state.measure, state.baseline, at)))))))),
  ];
  const told = details().queries[place];
  if (!told) return [...parts, el("p", { class: "quiet" }, `The documents of this query are not in this page, which has those of ${whole(set.detailed.length)} queries.`)];
  return [...parts, ...termParts(told), ...relevantPart(told, names), el("h4", {}, "Best documents"),
    el("p", { class: "quiet small" }, "The badge is the grade, ? for a document without judgement. A document opens for its text and what its terms, or the tokens that met, add to the score."),
    el("div", { class: "cards" }, names.map((name, index) => systemCard(told, name, index)))];
}

function termParts(told) {
  return Object.entries(told.terms).flatMap(([name, found]) => [
    el("h4", {}, `The query to ${name}: ${whole(found.count)} term${found.count === 1 ? "" : "s"}`),
    found.terms.length ? termList(found.terms, true) : el("p", { class: "quiet" }, "No term of the index."),
    found.terms.some((term) => term[2]) ? el("p", { class: "quiet small" }, "Terms with + are expansion: not in the query's text. Numbers are query weights.") : null,
  ]).filter(Boolean);
}

function relevantPart(told, names) {
  const documents = details().documents;
  const shown = told.relevant.length < told.relevantTotal ? `, the first ${told.relevant.length} by grade and rank` : "";
  if (!told.relevant.length) return [el("p", { class: "quiet" }, "No document is judged relevant.")];
  return [el("h4", {}, `Ranks of its ${whole(told.relevantTotal)} relevant document${told.relevantTotal === 1 ? "" : "s"}${shown}`),
    el("div", { class: "scroll" }, el("table", {},
      el("thead", {}, el("tr", {}, el("th", { scope: "col", class: "text" }, "document"), el("th", { scope: "col" }, "grade"), names.map((name) => el("th", { scope: "col" }, name)))),
      el("tbody", {}, told.relevant.map(([number_, grade, ranks]) => {
        const [id, title] = documents[number_];
        return el("tr", {}, el("th", { scope: "row", class: "text" }, el("span", { class: "clamp" }, title || documents[number_][2] || id)), el("td", {}, gradeBadge(grade)),
          ranks.map((rank) => el("td", {}, rank ? whole(rank) : "–")));
      }))))];
}

function systemCard(told, name, index) {
  const documents = details().documents;
  const items = told.top[name].map(([number_, score, grade], rank) => {
    const [id, title, snippet] = documents[number_];
    const terms = Object.entries(told.terms).filter(([, found]) => found.documents[number_]);
    return el("li", {}, el("details", {},
      el("summary", {}, el("span", { class: "rank" }, String(rank + 1)), gradeBadge(grade), el("span", { class: "clamp" }, title || snippet || id)),
      el("p", {}, snippet === undefined ? "(its text is not available)" : snippet || "(no text)"),
      el("p", { class: "quiet" }, "Document ", el("span", { class: "mono" }, id), `, score ${number(score, 5)}`),
      terms.map(([retriever, found]) => el("p", {}, `${retriever}:`, termList(found.documents[number_], false))),
      Object.entries(told.tokens || {}).filter(([, found]) => found.documents[number_]).map(([retriever, found]) => tokenStrip(retriever, found, number_))));
  });
  const value = ofQuery(current(), state.measure, name, state.query);
  return el("div", { class: `card ${colour(index)}` }, el("h4", {}, el("span", {}, name), el("span", { class: "quiet" }, `${fixed(value)}`)),
    items.length ? el("ol", {}, items) : el("p", { class: "quiet" }, "No document."));
}
