// The controls, and the first drawing.
const forget = () => { state.query = null; state.chosen = false; bucket = null; };

function setDataset(index) {
  state.set = Number(index);
  const set = current();
  if (!set.measures.includes(state.measure)) state.measure = set.measures[0];
  if (!set.systems.some((each) => each.name === state.baseline)) state.baseline = set.baseline;
  if (!set.systems.some((each) => each.name === state.system)) state.system = null;
  forget();
  sorting.delete("results");
  controls();
  for (const { host } of sections) {
    host.replaceChildren();
    host.classList.add("lazy");
  }
  redraw();
}

function setBaseline(name) {
  state.baseline = name;
  controls();
  redraw("queries");
}

function theme() {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  try {
    localStorage.setItem("sluice-theme", root.dataset.theme);
  } catch { /* a browser that stores nothing for files */ }
  controls();
}

function controls() {
  const set = current();
  const dark = document.documentElement.dataset.theme ? document.documentElement.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  const focused = document.activeElement && document.activeElement.id;
  const parts = [
    summary.sets.length > 1 ? choice("Dataset", summary.sets.map((name, index) => [index, name]), state.set, setDataset, "dataset") : null,
    choice("Measure", set.measures.map((name) => [name, name]), state.measure, (value) => { state.measure = value; redraw("overview", "costs", "queries"); }, "measure"),
    choice("Baseline", set.systems.map((each) => [each.name, each.name]), state.baseline, setBaseline, "baseline"),
    el("button", { type: "button", id: "theme", click: theme }, dark ? "Light" : "Dark"),
  ];
  document.getElementById("controls").replaceChildren(...parts.filter(Boolean));
  if (focused && document.getElementById(focused) && focused !== "main") document.getElementById(focused).focus();
  document.getElementById("subtitle").textContent = `${summary.sets.length > 1 ? `${summary.sets.length} datasets: ${summary.sets.join(", ")}` : set.name}. ${summary.evaluated ? `Evaluated ${summary.evaluated.replace("T", " ").replace(/:\d\dZ$/, " UTC")}.` : ""}`;
  document.getElementById("conclusion").textContent = set.conclusion;
  const failed = set.failed.map((text) => el("p", {}, text));
  document.getElementById("about").replaceChildren(
    el("p", {}, `Made by sluice report from ${summary.folder}. Everything shown lies in this file; it reads nothing else. Figures for slides and papers: sluice plot tradeoff, differences, depths and training, with the folder's path.`), ...failed,
    ...Object.entries(summary.failed).map(([name, why]) => el("p", {}, `${name} could not be evaluated: ${why}`)));
}

try {
  const stored = localStorage.getItem("sluice-theme");
  if (stored === "dark" || stored === "light") document.documentElement.dataset.theme = stored;
} catch { /* as above */ }

document.getElementById("controls").addEventListener("submit", (event) => event.preventDefault());
setDataset(0);
document.getElementById("static").remove();

let waiting = 0;
window.addEventListener("resize", () => {
  clearTimeout(waiting);
  waiting = setTimeout(() => {
    const changed = sections.filter((found) => found.width && found.width !== found.host.clientWidth && !found.host.hidden);
    if (changed.length) redraw(...changed.map((found) => found.id));
  }, 150);
});
window.addEventListener("beforeprint", () => sections.forEach(draw));
