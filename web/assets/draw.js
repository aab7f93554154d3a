// Drawing: maps of numbers as colours, pictures with a map over them, and small elements.

/** An element with attributes, listeners (`onclick`) and children. */
export function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    const word = key.startsWith("aria-");
    if (value === undefined || (value === false && !word)) continue;
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    // the page's policy forbids styles in attributes
    else if (key === "style") Object.entries(value).forEach(([name, text]) => made.style.setProperty(name, text));
    else made.setAttribute(key, value === true && !word ? "" : value);
  }
  made.append(...children.filter((child) => child !== undefined && child !== null));
  return made;
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
export function stretched(values) {
  let low = Infinity, high = -Infinity;
  for (const value of values) {
    low = Math.min(low, value);
    high = Math.max(high, value);
  }
  const range = high - low || 1;
  return Array.from(values, (value) => (value - low) / range);
}

/** A canvas of rows and columns, a pixel each. */
export function map(values, [rows, columns], label) {
  const canvas = element("canvas", { width: columns, height: rows, role: "img", "aria-label": label });
  const context = canvas.getContext("2d");
  const pixels = context.createImageData(columns, rows);
  stretched(values).forEach((value, i) => pixels.data.set([...colour(value), 255], 4 * i));
  context.putImageData(pixels, 0, 0);
  return canvas;
}

/** Draws a map over what a canvas shows. */
export function overlay(canvas, values, size, strength = 0.6) {
  const context = canvas.getContext("2d");
  context.save();
  context.globalAlpha = strength;
  context.imageSmoothingEnabled = false;
  context.drawImage(map(values, size, ""), 0, 0, canvas.width, canvas.height);
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
  return new Promise((done, failed) => {
    const image = new Image();
    image.onload = () => done(image);
    image.onerror = () => failed(new Error("the picture cannot be shown"));
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
