// Drawn figures: axes, lines, points, histograms. Lengths are in pixels of the page.
const logarithm = (value, log) => (log ? Math.log10(value) : value);

function scale(domain, range, log = false) {
  const [low, high] = domain.map((value) => logarithm(value, log));
  const span = high - low || 1;
  return (value) => range[0] + ((logarithm(value, log) - low) / span) * (range[1] - range[0]);
}

function ticks(domain, count, log = false) {
  const [low, high] = domain;
  if (log) {
    const found = [];
    for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power++) {
      for (const step of high / low > 2000 ? [1] : high / low > 30 ? [1, 3] : [1, 2, 5]) {
        const value = Number((step * 10 ** power).toPrecision(3));
        if (value >= low * 0.999 && value <= high * 1.001) found.push(value);
      }
    }
    if (found.length > 1) return found;
  }
  const rough = (high - low || 1) / Math.max(1, count);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((each) => each * power).find((each) => each >= rough * 0.999);
  const found = [];
  for (let at = Math.ceil(low / step - 1e-9); at * step <= high + step * 1e-9; at++) found.push(Number((at * step).toPrecision(12)));
  return found;
}

function padded(values, log = false, share = 0.08) {
  const [low, high] = [Math.min(...values), Math.max(...values)];
  if (log) return low === high ? [low / 2, high * 2] : [low / (high / low) ** share, high * (high / low) ** share];
  const room = (high - low || Math.abs(high) || 1) * share;
  return [low - room, high + room];
}

// Axes with their labels; `x` and `y` are {domain, label, log, ticks, form}.
function frame(width, height, x, y, label) {
  const form = { x: x.form || number, y: y.form || number };
  const yTicks = y.ticks || ticks(y.domain, Math.max(2, height / 48), y.log);
  const left = 12 + 7 * Math.max(...yTicks.map((value) => form.y(value).length));
  const area = { left, right: width - 10, top: 22, bottom: height - 38 };
  const X = scale(x.domain, [area.left, area.right], x.log);
  const Y = scale(y.domain, [area.bottom, area.top], y.log);
  const root = shape("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label }, shape("title", {}, label));
  for (const value of yTicks) {
    root.append(shape("line", { class: "grid", x1: area.left, x2: area.right, y1: Y(value), y2: Y(value) }));
    root.append(shape("text", { x: area.left - 6, y: Y(value) + 4, "text-anchor": "end" }, form.y(value)));
  }
  let end = -Infinity;
  for (const value of x.ticks || ticks(x.domain, Math.max(2, width / 90), x.log)) {
    const text = form.x(value);
    const at = X(value);
    if (at - 3.5 * text.length < end + 6) continue;
    end = at + 3.5 * text.length;
    root.append(shape("line", { class: "axis", x1: at, x2: at, y1: area.bottom, y2: area.bottom + 4 }));
    root.append(shape("text", { x: at, y: area.bottom + 17, "text-anchor": "middle" }, text));
  }
  root.append(shape("line", { class: "axis", x1: area.left, x2: area.right, y1: area.bottom, y2: area.bottom }));
  root.append(shape("text", { x: 0, y: 11 }, y.label));
  root.append(shape("text", { x: area.right, y: height - 4, "text-anchor": "end" }, x.label));
  return { root, X, Y, area };
}

const path = (points) => points.map(([x, y], at) => `${at ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");

// A point's form differs by system as its colour does.
function marker(index, x, y, size = 5) {
  const forms = [
    () => shape("circle", { cx: x, cy: y, r: size }),
    () => shape("rect", { x: x - size * 0.9, y: y - size * 0.9, width: size * 1.8, height: size * 1.8 }),
    () => shape("path", { d: `M${x} ${y - size * 1.2}L${x + size * 1.15} ${y + size * 0.9}L${x - size * 1.15} ${y + size * 0.9}Z` }),
    () => shape("path", { d: `M${x} ${y - size * 1.3}L${x + size * 1.3} ${y}L${x} ${y + size * 1.3}L${x - size * 1.3} ${y}Z` }),
    () => shape("path", { d: `M${x} ${y + size * 1.2}L${x + size * 1.15} ${y - size * 0.9}L${x - size * 1.15} ${y - size * 0.9}Z` }),
    () => shape("path", { d: `M${x - size * 1.2} ${y - 2}h${size * 1.2 - 2}v${2 - size * 1.2}h4v${size * 1.2 - 2}h${size * 1.2 - 2}v4h${2 - size * 1.2}v${size * 1.2 - 2}h-4v${2 - size * 1.2}h${2 - size * 1.2}Z` }),
  ];
  const made = forms[index % forms.length]();
  made.setAttribute("class", `mark ${colour(index)}`);
  return made;
}

function legend(names, withLine = true) {
  return el("ul", { class: "legend" }, names.map((name, index) => el("li", {},
    shape("svg", { width: 30, height: 14, "aria-hidden": "true" },
      withLine ? shape("line", { class: `line ${colour(index)}`, x1: 0, x2: 30, y1: 7, y2: 7, "stroke-dasharray": dashes(index) }) : null,
      marker(index, 15, 7, 4.5)), name)));
}

function swatches(entries) {
  return el("ul", { class: "legend" }, entries.map(([kind, text]) => el("li", {}, el("span", { class: `swatch ${kind}` }), text)));
}

// Lines are {name, points: [[x, y], ...], index, target}.
function lineChart(width, height, x, y, lines, label, marks = true) {
  const made = frame(width, height, x, y, label);
  for (const line of lines) {
    const points = line.points.map(([a, b]) => [made.X(a), made.Y(b)]);
    made.root.append(shape("path", { class: `line ${colour(line.index)}`, d: path(points), "stroke-dasharray": dashes(line.index) }));
    if (marks) points.forEach(([a, b]) => made.root.append(marker(line.index, a, b, 3.4)));
    if (line.target) {
      const at = made.Y(line.target);
      made.root.append(shape("line", { class: `target ${colour(line.index)}`, x1: made.area.left, x2: made.area.right, y1: at, y2: at }));
    }
  }
  return made.root;
}

// Points are {name, index, x, y}, and low and high of an interval of y; the front joins those that no other beats in both.
function scatter(width, height, x, y, points, label) {
  const made = frame(width, height, x, y, label);
  const front = points.filter((one) => !points.some((other) => other.x <= one.x && other.y >= one.y && (other.x < one.x || other.y > one.y)));
  front.sort((one, other) => one.x - other.x || one.y - other.y);
  const steps = [];
  front.forEach((point, at) => {
    if (at) steps.push([made.X(point.x), made.Y(front[at - 1].y)]);
    steps.push([made.X(point.x), made.Y(point.y)]);
  });
  made.root.append(shape("path", { class: "front", d: path(steps) }));
  const taken = points.map((point) => [made.X(point.x) - 7, made.Y(point.y) - 7, made.X(point.x) + 7, made.Y(point.y) + 7]);
  for (const point of points) {
    const [a, b] = [made.X(point.x), made.Y(point.y)];
    const text = point.name.length > 24 ? `${point.name.slice(0, 23)}…` : point.name;
    made.root.append(filled(marker(point.index, a, b, 5.5), {}, [shape("title", {}, `${point.name}: ${number(point.x)}, ${fixed(point.y)}`)]));
    if (point.low !== undefined) made.root.append(shape("line", { class: `error ${colour(point.index)}`, x1: a, x2: a, y1: made.Y(point.low), y2: made.Y(point.high) }));
    const wide = 7 * text.length;
    const places = [[a + 10, b + 4], [a - 10 - wide, b + 4], [a - wide / 2, b - 11], [a - wide / 2, b + 20], [a + 8, b - 8], [a + 8, b + 16]];
    const free = places.find(([left, base]) => {
      const box = [left, base - 10, left + wide, base + 3];
      return box[0] >= made.area.left && box[2] <= width && box[1] >= made.area.top - 8 && box[3] <= made.area.bottom &&
        taken.every((other) => box[2] < other[0] || box[0] > other[2] || box[3] < other[1] || box[1] > other[3]);
    });
    if (!free) continue;
    taken.push([free[0], free[1] - 10, free[0] + wide, free[1] + 3]);
    made.root.append(shape("text", { x: free[0], y: free[1], class: point.name === state.system ? "name" : null }, text));
  }
  return { root: made.root, front: front.map((point) => point.name) };
}

// Groups are {share, index}: outlines of the same bins over each other.
function histogram(width, height, edges, groups, xLabel, label) {
  const high = Math.max(...groups.flatMap((group) => group.share), 1e-9);
  const made = frame(width, height, { domain: [edges[0], edges[edges.length - 1]], label: xLabel }, { domain: [0, high], label: "share", form: (value) => `${Number((value * 100).toPrecision(3))}%` }, label);
  for (const group of groups) {
    const points = [[made.X(edges[0]), made.Y(0)]];
    group.share.forEach((value, at) => points.push([made.X(edges[at]), made.Y(value)], [made.X(edges[at + 1]), made.Y(value)]));
    points.push([made.X(edges[edges.length - 1]), made.Y(0)]);
    made.root.append(shape("path", { class: `area ${colour(group.index)}`, d: path(points), "stroke-dasharray": dashes(group.dash || 0) }));
  }
  return made.root;
}

function captioned(chart, title, text, ...more) {
  return el("figure", {}, chart, ...more, el("figcaption", {}, el("b", {}, `${title} `), text));
}

function dataTable(title, head, rows) {
  return el("details", { class: "small" }, el("summary", {}, title), el("div", { class: "scroll" }, el("table", {},
    el("thead", {}, el("tr", {}, head.map((text) => el("th", { scope: "col" }, text)))),
    el("tbody", {}, rows.map(([name, ...cells]) => el("tr", {}, el("th", { scope: "row" }, name), cells.map((cell) => el("td", {}, cell))))))));
}
