// Failures, recall by depth, scores, lengths, sparsity and training curves.
const KINDS = [
  ["none", "no relevant retrieved", "No relevant document anywhere in the run."],
  ["lost", "lost in reranking", "The first stage had a relevant document among those reranked; none is in the first 10."],
  ["low", "below rank 10", "A relevant document was retrieved, but stands below rank 10."],
  ["unjudged", "first is unjudged", "The first document has no judgement; queries with the most unjudged in the first 10 come first."],
];
let bucket = null;

section("failures", "Failures", (set) => {
  const names = Object.keys(set.failures);
  const kinds = set.judgesFew ? KINDS.filter(([kind]) => kind !== "unjudged") : KINDS;
  const few = set.judgesFew ? " Only a relevant document or two of each query are judged here, so an unjudged first document says nothing and is not counted." : "";
  const list = el("div", {});
  const cell = (name, kind) => {
    const [count] = set.failures[name][kind];
    if (kind === "lost" && set.reranked[name] === null) return el("td", { class: "quiet" }, "–");
    return el("td", {}, count ? el("button", { type: "button", class: "plain count", "aria-pressed": "false", click: (event) => open(event.currentTarget, name, kind) }, whole(count)) : "0");
  };
  const open = (button, name, kind) => {
    bucket = [name, kind];
    document.querySelectorAll("#failures .count").forEach((each) => each.setAttribute("aria-pressed", String(each === button)));
    const [count, places] = set.failures[name][kind];
    const at = new Map(set.perQuery.places.map((place, where) => [place, where]));
    const depth = kind === "lost" ? ` ${whole(set.reranked[name])} are reranked.` : "";
    const [, title, text] = KINDS.find(([each]) => each === kind);
    list.replaceChildren(el("h3", {}, `${name}: ${title}`), el("p", { class: "quiet small" }, text + depth),
      el("ul", { class: "found" }, queryButtons(set, places.map((place) => at.get(place)), count)));
  };
  return [
    el("p", { class: "quiet small" }, "Queries by what went wrong; a number opens its queries. Of the first three, a query is in one at most." + few),
    el("div", { class: "scroll" }, el("table", {},
      el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "system"), kinds.map(([, title, text]) => el("th", { scope: "col", title: text }, title)))),
      el("tbody", {}, names.map((name) => el("tr", {}, el("th", { scope: "row" }, name), kinds.map(([kind]) => cell(name, kind))))))),
    list,
  ];
});

section("recall", "Recall by depth", (set) => {
  const names = Object.keys(set.recall.systems);
  const lines = names.map((name, index) => ({ name, index, points: set.recall.systems[name].map((value, at) => [set.recall.depths[at], value]) }));
  const deepest = Math.max(2, ...lines.flatMap((line) => line.points.map(([depth]) => depth)));
  const chart = lineChart(space(760), 340, { domain: [1, deepest], label: "depth (log)", log: true, ticks: set.recall.depths.filter((depth) => depth <= deepest) },
    { domain: [0, Math.max(...lines.flatMap((line) => line.points.map(([, value]) => value)), 0.1)], label: "recall", form: (v) => fixed(v, 2) }, lines,
    `Recall by depth of ${names.join(", ")}`);
  return [captioned(chart, "Mean recall at each depth.", `Of documents with a grade of 1 or more, over ${whole(set.queryCount)} queries; a line ends where its run does.`, legend(names)),
    dataTable("Recall as a table", ["system", ...set.recall.depths.map((depth) => `@${depth}`)], names.map((name) => [name, ...set.recall.depths.map((_, at) => fixed(set.recall.systems[name][at]))]))];
});

const CLASSES = [["relevant", 0, 0], ["judged not relevant", 1, 8], ["unjudged", 6, 16]];

section("scores", "Score distributions", (set) => {
  const names = Object.keys(set.scores);
  const width = panel(17);
  return [
    swatches(CLASSES.map(([text, index]) => [colour(index), text])),
    el("div", { class: "panels" }, names.map((name) => {
      const found = set.scores[name];
      const groups = found.classes.map((each, at) => ({ share: each.share, index: CLASSES[at][1], dash: CLASSES[at][2] })).filter((_, at) => found.classes[at].count);
      const text = found.classes.map((each, at) => `${whole(each.count)} ${CLASSES[at][0]}${each.count ? ` (mean ${number(each.mean)})` : ""}`).join(", ");
      return captioned(histogram(width, 190, found.edges, groups, "score", `Scores of ${name}: ${text}`), `${name}.`, `${text}.`);
    })),
    el("p", { class: "quiet small" }, "Scores of each query's first 100 documents, as the share of each class per bin; the outermost bins take what lies beyond."),
  ];
});

section("collection", "Documents and terms", (set) => {
  const width = panel(17);
  const shown = [];
  if (set.lengths) {
    const { groups, unit, beyond, read, total } = set.lengths;
    const text = `${whole(read)} of ${whole(total)} documents (median ${number(groups[0].median)} ${unit}) and ${whole(groups[1].count)} relevant ones (median ${number(groups[1].median)}); the last bar takes what is longer, up to ${whole(beyond)}.`;
    shown.push(captioned(histogram(width, 190, set.lengths.edges, groups.map((group, at) => ({ share: group.share, index: at ? 0 : 6, dash: at ? 0 : 8 })), unit, `Lengths: ${text}`), "Document length.", text,
      swatches([[colour(6), "all"], [colour(0), "relevant"]])));
  }
  for (const [name, found] of Object.entries(set.termCounts)) {
    for (const side of ["documents", "queries"]) {
      const [group] = found[side].groups;
      const text = `${whole(group.count)} ${side}: mean ${number(group.mean)}, median ${number(group.median)}, at most ${whole(found[side].beyond)}.`;
      shown.push(captioned(histogram(width, 190, found[side].edges, [{ share: group.share, index: side === "queries" ? 1 : 2 }], "terms that are not 0", `Terms of ${name}: ${text}`), `${name}: terms of ${side}.`, text));
    }
  }
  return shown.length ? [el("div", { class: "panels" }, shown)] : null;
});

section("training", "Training", (set) => {
  const found = [...set.trainings, ...summary.trainings];
  if (!found.length) return null;
  const width = panel(17);
  return found.flatMap((training) => [el("h3", {}, training.name), el("div", { class: "panels" }, training.panels.map((panel) => {
    const lines = panel.lines.map((line, index) => ({ name: line.name, index, target: line.target, points: line.steps.map((step, at) => [step, line.values[at]]) }));
    const values = lines.flatMap((line) => [...line.points.map(([, value]) => value), ...(line.target ? [line.target] : [])]);
    const steps = lines.flatMap((line) => line.points.map(([step]) => step));
    const chart = lineChart(width, 190, { domain: steps.length > 1 ? [Math.min(...steps), Math.max(...steps)] : padded(steps), label: "step", form: whole }, { domain: padded(values), label: panel.axis }, lines,
      `${training.name}: ${lines.map((line) => `${line.name} from ${number(line.points[0][1])} to ${number(line.points[line.points.length - 1][1])}`).join("; ")}`, steps.length < 40);
    return captioned(chart, `${panel.title}.`, lines.some((line) => line.target) ? "The dotted line is the target." : "", lines.length > 1 ? legend(lines.map((line) => line.name)) : null);
  }))]);
});

section("origin", "What was run", (set) => [
  factTable(set.origin.facts),
  el("h3", {}, "Systems"), factTable(set.origin.systems, "mono"),
  el("h3", {}, "Their parts"), factTable(set.origin.parts),
  el("details", { class: "small" }, el("summary", {}, "Configuration (YAML)"), el("pre", { class: "mono", tabindex: 0 }, set.origin.config)),
  copyButtons({ YAML: set.origin.config }),
]);
