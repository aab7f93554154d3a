// Boxes over a picture: their colours, their places, and labels that do not cover each other.

import { loadImage } from "./draw.js";

/** Pixels of the longer side of a canvas. */
export const LONGER_SIDE = 1024;

/** Okabe and Ito's colours, which are safe for colour-blind readers and those of `regard detect`, each with an ink that reads on it. */
const COLOURS = [["#f0e442", "#000000"], ["#56b4e9", "#000000"], ["#e69f00", "#000000"], ["#009e73", "#000000"], ["#cc79a7", "#000000"], ["#d55e00", "#000000"], ["#0072b2", "#ffffff"]];

/** The colour of a class or of a region, and of what is written on it. */
export function colours(index) {
  const [colour, ink] = COLOURS[index % COLOURS.length];
  return { "--colour": colour, "--label": ink };
}

/** Where a box is, as shares of its picture; boxes may reach beyond it. */
export function placeOf(box, [height, width]) {
  const [left, right] = [box.x, box.x + box.width].map((at) => Math.min(Math.max(at / width, 0), 1));
  const [top, bottom] = [box.y, box.y + box.height].map((at) => Math.min(Math.max(at / height, 0), 1));
  const percent = (share) => `${100 * share}%`;
  return { left: percent(left), top: percent(top), width: percent(right - left), height: percent(bottom - top) };
}

/** The indices of boxes, the largest first: a smaller one lies above, so that both can be clicked. */
export function largestFirst(boxes) {
  const area = ({ width, height }) => width * height;
  return [...boxes.keys()].sort((a, b) => area(boxes[b]) - area(boxes[a]));
}

/** Draws a picture of rows and columns over a whole canvas, whose stage gets its shape. */
export function drawPicture(canvas, image, [height, width]) {
  const scale = LONGER_SIDE / Math.max(height, width);
  [canvas.height, canvas.width] = [height, width].map((side) => Math.max(Math.round(side * scale), 1));
  canvas.parentElement.style.setProperty("--aspect", width / height);
  const context = canvas.getContext("2d");
  // show single pixels of small pictures
  context.imageSmoothingEnabled = scale < 1;
  context.drawImage(image, 0, 0, canvas.width, canvas.height);
}

/** Puts the label of each box above it, below or inside it, where no better one is; without room it shows when pointed at. */
export function placeLabels(layer, boxes) {
  const placed = [];
  for (const box of boxes.filter(({ hidden }) => !hidden)) {
    const label = box.firstChild;
    const { offsetLeft, offsetTop, offsetHeight } = box;
    const [width, height] = [label.offsetWidth, label.offsetHeight];
    const left = Math.max(Math.min(offsetLeft, layer.clientWidth - width), 0);
    const tops = [offsetTop - height, offsetTop + offsetHeight, offsetTop, offsetTop + offsetHeight - height];
    const inside = tops.filter((top) => top >= 0 && top + height <= layer.clientHeight);
    const isFree = (top) => placed.every((other) => left >= other.left + other.width || other.left >= left + width || top >= other.top + other.height || other.top >= top + height);
    const free = inside.find(isFree);
    label.classList.toggle("crowded", free === undefined);
    const top = free ?? inside[0] ?? 0;
    if (free !== undefined) placed.push({ left, top, width, height });
    label.style.setProperty("left", `${left - offsetLeft}px`);
    label.style.setProperty("top", `${top - offsetTop}px`);
  }
}

export async function loadBlob(blob) {
  const url = URL.createObjectURL(blob);
  try {
    return await loadImage(url);
  } finally {
    URL.revokeObjectURL(url);
  }
}
