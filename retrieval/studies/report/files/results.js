// The table of results, its copies, costs against quality, and the overview of several datasets.
const sorting = new Map(); // by table: [column, descending]
const SECONDARY = new Set(["p99 ms", "bytes/doc", "indexed docs/s", "peak MB"]); // behind "more columns"
const expanded = new Set(); // tables that show them

// A sortable table; its marks are [system, column] with a dagger; the best of `bold` columns is bold.
// `told` may have `meanings` of columns, and `bars`: by column the intervals of differences.
function resultTable(key, table, bold, told = {}) {
  const every = Object.keys(table.columns);
  const columns = expanded.has(key) ? every : every.filter((column) => !SECONDARY.has(column));
  const [by, falling] = sorting.get(key) || [null, true];
  const rows = [...table.systems];
  if (by !== null) {
    rows.sort((one, other) => {
      const [a, b] = [one[by], other[by]];
      if (a === null || b === null) return (a === null) - (b === null);
      return (falling ? -1 : 1) * (typeof a === "string" ? a.localeCompare(b) : a - b);
    });
  }
  const marked = new Set(table.marks.map((pair) => JSON.stringify(pair)));
  const dagged = new Set(table.marks.map(([, column]) => column));
  const again = () => document.getElementById(`table-${key}`).replaceWith(resultTable(key, table, bold, told));
  const toggle = () => {
    if (!expanded.delete(key)) expanded.add(key);
    again();
    document.querySelector(`#table-${key} .more`).focus();
  };
  const more = every.some((column) => SECONDARY.has(column))
    ? el("button", { type: "button", class: "more", "aria-expanded": String(expanded.has(key)), click: toggle }, expanded.has(key) ? "Fewer columns" : "More columns") : null;
  const heading = (column, text) => el("th", { scope: "col", "aria-sort": by === column ? (falling ? "descending" : "ascending") : "none" },
    el("button", { type: "button", class: "plain", title: (told.meanings || {})[column], click: () => {
      sorting.set(key, [column, by === column ? !falling : column !== "name"]);
      again();
      document.querySelectorAll(`#table-${key} thead button`)[["name", ...columns].indexOf(column)].focus();
    } }, text));
  const best = new Map(bold.map((column) => [column, Math.max(...rows.map((row) => row[column] ?? -Infinity))]));
  return el("div", { id: `table-${key}` }, el("div", { class: "scroll full", tabindex: 0, role: "region", "aria-label": "Results" }, el("table", {},
    el("thead", {}, el("tr", {}, heading("name", "system"), columns.map((column) => heading(column, column)))),
    el("tbody", {}, rows.map((row) => el("tr", {}, el("th", { scope: "row" }, row.name), columns.map((column) => {
      const top = best.has(column) && row[column] === best.get(column);
      const dagger = dagged.has(column) ? el("span", { class: marked.has(JSON.stringify([row.name, column])) ? "dagger" : "dagger absent" }, "†") : null;
      return el("td", { class: top ? "best" : null }, formatted(row[column], table.columns[column]), dagger, intervalBar((told.bars || {})[column], row.name));
    })))))), more);
}

// Where a difference to the baseline lies: a bar from low to high, and a line at no difference.
function intervalBar(bars, system) {
  if (!bars) return null;
  const [width, height] = [46, 10];
  const found = bars.get(system);
  const root = shape("svg", { class: "interval", width, height, viewBox: `0 0 ${width} ${height}`, ...(found ? { role: "img", "aria-label": differenceText(found) } : { "aria-hidden": "true" }) });
  if (!found) return root;
  const most = Math.max(...[...bars.values()].flatMap((each) => [Math.abs(each.low), Math.abs(each.high)]), 1e-9);
  const X = scale([-most, most], [1, width - 1]);
  const kind = !found.significant ? "same" : found.difference > 0 ? "gain" : "loss";
  root.append(
    shape("line", { class: "axis", x1: X(0), x2: X(0), y1: 0, y2: height }),
    shape("rect", { class: kind, x: X(found.low), width: Math.max(1, X(found.high) - X(found.low)), y: 3, height: 4 }),
    shape("rect", { class: "middle", x: X(found.difference) - 1, width: 2, y: 1, height: 8 }));
  return el("span", { title: differenceText(found) }, root);
}
const differenceText = (found) => `${signed(found.difference)} ${interval(found)} over ${found.baseline}`;

function intervalsOf(set) {
  const bars = {};
  for (const each of set.comparisons) {
    if (typeof each.low === "number" && typeof each.high === "number") (bars[each.measure] ||= new Map()).set(each.system, each);
  }
  return bars;
}

function meaningsList(set) {
  const rows = Object.entries(set.meanings);
  if (!rows.length) return null;
  const bar = Object.keys(intervalsOf(set)).length ? [["bar", `where the difference to ${set.comparisons[0].baseline} lies, with its confidence interval; grey is no significant difference`]] : [];
  return el("details", { class: "small" }, el("summary", {}, "What the columns mean"), el("dl", {}, [...rows, ...bar].flatMap(([column, text]) => [el("dt", {}, column), el("dd", {}, text)])));
}

function copyButtons(copies) {
  const said = el("span", { class: "quiet", role: "status" });
  const area = el("textarea", { readonly: true, hidden: true, "aria-label": "The table as text" });
  const copy = async (kind) => {
    area.value = copies[kind];
    area.hidden = false;
    area.focus();
    area.select();
    try {
      await navigator.clipboard.writeText(copies[kind]);
      said.textContent = `${kind} is on the clipboard`;
    } catch {
      said.textContent = document.execCommand("copy") ? `${kind} is on the clipboard` : `${kind} is selected below`;
    }
  };
  return [el("div", { class: "choices" }, "Copy as ", Object.keys(copies).map((kind) => el("button", { type: "button", click: () => copy(kind) }, kind)), said), area];
}

const captionOf = (table) => (table.caption ? el("p", { class: "quiet small" }, table.caption) : null);

section("overview", "All datasets", () => {
  if (summary.sets.length < 2) return null;
  const table = summary.overview[state.measure];
  if (!table) return null;
  return [
    el("p", { class: "quiet small" }, `${state.measure} by dataset. The best of a column is bold; a heading sorts by its column.`),
    resultTable("overview", table, Object.keys(table.columns)), captionOf(table), copyButtons(table.copies),
  ];
});

section("results", "Results", (set) => [
  el("p", { class: "quiet small" }, `${set.name}, split ${set.split}: ${whole(set.queryCount)} queries with judgements. The best value of a measure is bold; a heading sorts by its column.`),
  resultTable("results", set.table, set.measures, { meanings: set.meanings, bars: intervalsOf(set) }), captionOf(set.table), copyButtons(set.table.copies),
  meaningsList(set), pipelineTable(set), comparisonTable(set), stageTable(set),
]);

const interval = (found) => (typeof found.low === "number" ? `${signed(found.low)} … ${signed(found.high)}` : "–");

function comparisonTable(set) {
  if (!set.comparisons.length) return null;
  const sized = set.comparisons.some((each) => typeof each.effect_size === "number");
  const head = ["system", "measure", "difference", ...(sized ? ["confidence interval", "effect size"] : []), "p", "p corrected", "wins", "ties", "losses"];
  return dataTable(`Differences to ${set.comparisons[0].baseline}, with their tests`, head, set.comparisons.map((each) => [
    each.system, each.measure, signed(each.difference), ...(sized ? [interval(each), number(each.effect_size)] : []),
    number(each.p, 2), number(each.p_corrected, 2), each.wins, each.ties, each.losses].map((cell) => String(cell ?? "–"))));
}

function pipelineTable(set) {
  const named = set.origin.systems.filter(([name, pipeline]) => pipeline !== name);
  return el("details", { class: "small" }, el("summary", {}, "What each system is"), factTable(named, "mono"), factTable(set.origin.parts));
}

function factTable(pairs, kind = "") {
  if (!pairs.length) return null;
  return el("div", { class: "scroll" }, el("table", { class: "facts" }, el("tbody", {}, pairs.map(([name, text]) =>
    el("tr", {}, el("th", { scope: "row" }, name), el("td", { class: `text ${kind}` }, text))))));
}

function stageTable(set) {
  const rows = set.systems.flatMap((each) => Object.entries((each.latency_ms || {}).stages || {}).map(([stage, found]) =>
    [each.name, stage, number(found.p50), number(found.p95), number(found.p99)]));
  return rows.length ? dataTable("Latency of each stage", ["system", "stage", "p50 ms", "p95 ms", "p99 ms"], rows) : null;
}

// The interval of a difference, as values of the measure.
function around(set, found) {
  if (!found) return {};
  const base = set.systems.find((each) => each.name === found.baseline).measures[found.measure];
  return { low: base + found.low, high: base + found.high };
}

section("costs", "Quality against cost", (set) => {
  const width = panel(25);
  const kinds = [
    ["latency", "median latency, ms (log)", (system) => (system.latency_ms || {}).p50],
    ["index size", "index, MB (log)", (system) => system.index_bytes / 1e6],
  ];
  const figures = kinds.map(([kind, label, value]) => {
    const bars = intervalsOf(set)[state.measure] || new Map();
    const points = set.systems.map((system, index) => ({ name: system.name, index, x: value(system), y: system.measures[state.measure], ...around(set, bars.get(system.name)) }))
      .filter((point) => point.x > 0 && typeof point.y === "number");
    if (!points.length) return el("p", { class: "quiet" }, `No system has a measured ${kind}.`);
    const chart = scatter(width, 300, { domain: padded(points.map((point) => point.x), true, 0.12), label, log: true },
      { domain: padded(points.flatMap((point) => [point.y, point.low ?? point.y, point.high ?? point.y]), false, 0.15), label: state.measure, form: (v) => fixed(v, 3) }, points,
      `${state.measure} against ${kind}: ${points.map((point) => `${point.name} ${number(point.x)}, ${fixed(point.y)}`).join("; ")}`);
    return captioned(chart.root, `${state.measure} and ${kind}.`, `No system is both better and cheaper than those on the dashed line: ${chart.front.join(", ")}.${bars.size ? ` Upright lines are confidence intervals of the difference to ${set.comparisons[0].baseline}.` : ""}`);
  });
  return [el("div", { class: "panels wide" }, figures), legend(set.systems.map((each) => each.name), false)];
});
