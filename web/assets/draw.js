// Drawing: heatmaps, curves, and small elements.

/** An element with attributes, listeners (`onclick`) and children. */
export function element(name, attributes = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    const isAria = key.startsWith("aria-");
    if (value === undefined || (value === false && !isAria)) continue;
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    // the page's policy forbids styles in attributes
    else if (key === "style") Object.entries(value).forEach(([name, text]) => node.style.setProperty(name, text));
    else node.setAttribute(key, value === true && !isAria ? "" : value);
  }
  node.append(...children.filter((child) => child !== undefined && child !== null));
  return node;
}

/** An element of a drawing. */
export function shape(name, attributes = {}, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) if (value !== undefined) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

// dark violet over red to light yellow: grows in lightness, so that it also reads in grey
const STOPS = [[8, 5, 30], [80, 18, 110], [180, 50, 90], [240, 120, 40], [252, 255, 164]];

/** The colour of a number from 0 to 1. */
export function colour(value) {
  const at = Math.min(Math.max(value, 0), 1) * (STOPS.length - 1);
  const low = Math.min(Math.floor(at), STOPS.length - 2);
  return STOPS[low].map((from, i) => from + (at - low) * (STOPS[low + 1][i] - from));
}

/** Numbers from 0 to 1 by their smallest and largest. */
export function normalised(values) {
  let low = Infinity, high = -Infinity;
  for (const value of values) {
    low = Math.min(low, value);
    high = Math.max(high, value);
  }
  const range = high - low || 1;
  return Array.from(values, (value) => (value - low) / range);
}

/** A canvas of rows and columns as colours, a pixel each; `isScaled` are numbers from 0 to 1 as they are. */
export function heatmap(values, [rows, columns], label, isScaled = false) {
  const canvas = element("canvas", { width: columns, height: rows, role: "img", "aria-label": label });
  const context = canvas.getContext("2d");
  const pixels = context.createImageData(columns, rows);
  (isScaled ? values : normalised(values)).forEach((value, i) => pixels.data.set([...colour(value), 255], 4 * i));
  context.putImageData(pixels, 0, 0);
  return canvas;
}

/** A small heatmap with a caption, as a button. */
export function thumbnail(values, size, label, caption, pressed, onclick) {
  return element("figure", {}, element("button", { type: "button", "aria-pressed": pressed, onclick }, heatmap(values, size, label), element("figcaption", {}, caption)));
}

/** Puts other buttons into a container; the one at the place of the focus has it afterwards, so that the keyboard stays there. */
export function replaceButtons(container, ...nodes) {
  const focused = [...container.querySelectorAll("button")].indexOf(document.activeElement);
  container.replaceChildren(...nodes);
  container.querySelectorAll("button")[focused]?.focus();
}

/** Draws a heatmap over what a canvas shows; `span` is the height and width of the grid as shares of the canvas. */
export function overlay(canvas, values, size, strength = 0.6, span = [1, 1], isScaled = false) {
  const context = canvas.getContext("2d");
  context.save();
  context.globalAlpha = strength;
  context.imageSmoothingEnabled = false;
  context.drawImage(heatmap(values, size, "", isScaled), 0, 0, canvas.width * span[1], canvas.height * span[0]);
  context.restore();
}

/** A frame around a cell of a grid. */
export function frame(canvas, [row, column], [rows, columns]) {
  const context = canvas.getContext("2d");
  const [height, width] = [canvas.height / rows, canvas.width / columns];
  for (const [style, line] of [["#000000", 4], ["#ffffff", 2]]) {
    context.strokeStyle = style;
    context.lineWidth = line;
    context.strokeRect(column * width, row * height, width, height);
  }
}

export function loadImage(url) {
  return new Promise((resolve, reject) => {
    const image = new Image();
    image.onload = () => resolve(image);
    image.onerror = () => reject(new Error("the picture cannot be shown"));
    image.src = url;
  });
}

export const percent = (share) => `${(100 * share).toFixed(1)} %`;

/** Classes with bars. */
export function classes(list) {
  const item = ({ label, probability }) =>
    element("li", { style: { "--share": probability } }, element("span", {}, label), element("span", {}, percent(probability)));
  return element("ol", { class: "classes", "aria-label": "classes" }, ...list.map(item));
}

const hex = (value) => `#${colour(value).map((part) => Math.round(part).toString(16).padStart(2, "0")).join("")}`;

/** A table of numbers from 0 to `most` as colours, with a name for each row and column; a cell tells its number. */
export function heatTable(values, rows, columns, label, names = ["", ""], most = 1) {
  const cell = Math.max(14, Math.min(30, 520 / Math.max(rows.length, columns.length)));
  const left = 9 + 7 * Math.max(...rows.map((name) => name.length), 1);
  const top = 9 + 7 * Math.max(...columns.map((name) => name.length), 1);
  const [width, height] = [left + cell * columns.length + 2, top + cell * rows.length + 2];
  const text = (words, x, y, turn) => shape("text", { x, y, "font-size": 12, fill: "currentColor", "text-anchor": turn ? "start" : "end", transform: turn ? `rotate(-90 ${x} ${y})` : undefined }, words);
  const cells = values.flatMap((row, y) => row.map((value, x) =>
    shape("rect", { x: left + x * cell, y: top + y * cell, width: cell, height: cell, fill: hex(value / most) },
      shape("title", {}, `${names[0]}${rows[y]} ${names[1]}${columns[x]}: ${value.toFixed(3)}`))));
  return shape("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": label },
    ...rows.map((name, y) => text(name, left - 5, top + (y + 0.5) * cell + 4)),
    ...columns.map((name, x) => text(name, left + (x + 0.5) * cell + 4, top - 5, true)), ...cells);
}

const STROKES = ["var(--accent)", "var(--second)", "var(--third)", "var(--fourth)"];
const stroke = (index) => STROKES[index % STROKES.length];

/** Lines of points `[x, y]` over one axis; points without a number are left out. `best` is an epoch to mark. */
export function lines(title, series, best) {
  const [width, height, left, bottom] = [520, 220, 52, 24];
  const kept = series.map(({ name, points }) => ({ name, points: points.filter(([, y]) => Number.isFinite(y)) })).filter(({ points }) => points.length);
  if (!kept.length) return null;
  const all = kept.flatMap(({ points }) => points);
  const span = (axis) => [Math.min(...all.map((point) => point[axis])), Math.max(...all.map((point) => point[axis]))];
  const [[x0, x1], [y0, y1]] = [span(0), span(1)];
  const project = ([x, y]) => [left + ((x - x0) / (x1 - x0 || 1)) * (width - left - 8), 8 + (1 - (y - y0) / (y1 - y0 || 1)) * (height - bottom - 16)];
  const short = (value) => (Math.abs(value) >= 1000 || Number.isInteger(value) ? value.toFixed(0) : value.toPrecision(3));
  const word = (words, x, y, anchor) => shape("text", { x, y, "font-size": 12, fill: "currentColor", "text-anchor": anchor }, words);
  const drawing = shape("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${title}: from ${short(kept[0].points[0][1])} to ${short(kept[0].points.at(-1)[1])}` },
    shape("path", { d: `M${left} 8V${height - bottom - 8}H${width - 8}`, fill: "none", stroke: "var(--line)" }),
    word(short(y1), left - 6, 16, "end"), word(short(y0), left - 6, height - bottom - 8, "end"),
    word(short(x0), left, height - 8, "start"), word(short(x1), width - 8, height - 8, "end"),
    ...kept.map(({ points }, index) => shape("polyline", { points: points.map((point) => project(point).map((at) => at.toFixed(1)).join(",")).join(" "), fill: "none", stroke: stroke(index), "stroke-width": 2 })),
    ...(best ? [shape("line", { class: "best", x1: project([best.step, y0])[0], x2: project([best.step, y0])[0], y1: 8, y2: height - bottom - 8, stroke: "var(--faint)", "stroke-dasharray": "4 3" }, shape("title", {}, `the best epoch, ${best.epoch}`))] : []),
    // one point is no line
    ...kept.flatMap(({ points }, index) => (points.length === 1 ? points.map((point) => shape("circle", { cx: project(point)[0], cy: project(point)[1], r: 3, fill: stroke(index) })) : [])));
  const legend = kept.length > 1 ? element("figcaption", {}, ...kept.map(({ name }, index) => element("span", { style: { color: stroke(index) } }, `${name} `))) : null;
  return element("figure", { class: "chart" }, element("h2", {}, title), drawing, legend);
}
