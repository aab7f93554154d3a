// Object detection: a box around each object, and the evidence for a box.

import * as api from "./api.js";
import { attempt } from "./app.js";
import { LONGER_SIDE, colours, drawPicture, largestFirst, loadBlob, placeLabels, placeOf } from "./boxes.js";
import { element, overlay, replaceButtons, thumbnail } from "./draw.js";
import { modelSelect, pictureInput, sampleButtons } from "./inputs.js";

/** The lowest score that is asked for; the slider hides more without asking again. */
const LOWEST_SCORE = 0.05;
const METHODS = { "cross-attention": "cross-attention of its query in", "grad-cam": "Grad-CAM of its score at" };

const title = ({ label, score }) => `${label} ${score.toFixed(2)}`;

export function detect(panel, models) {
  if (!models.length) {
    panel.append(element("p", {}, "no detector is served; `regard serve --model detr-r50=FILE` adds one"));
    return;
  }
  // `maps` caches the evidence for boxes by their indices
  const state = { found: null, picture: null, image: null, maps: [], chosen: null, head: null, detecting: null, reading: null };
  let given = null;
  let [boxes, rows] = [[], []];
  const canvas = element("canvas", { width: LONGER_SIDE, height: LONGER_SIDE, role: "img", "aria-label": "no picture yet", onclick: () => choose(null) });
  const layer = element("div", { class: "boxes" });
  const stage = element("div", { class: "stage large" }, canvas, layer);
  const caption = element("p", { class: "hint", role: "status" });
  const heads = element("div", { class: "grid" });
  const count = element("p", { class: "hint", role: "status" });
  const list = element("ol", { class: "detections", "aria-label": "detections" });
  const time = element("p", { class: "time" });
  const slider = element("input", { type: "range", min: LOWEST_SCORE, max: 0.95, step: 0.01, value: 0.5, "aria-label": "score threshold", oninput: () => filter() });
  const output = element("output");
  const select = modelSelect(models, () => given && give(given));
  panel.append(
    element("div", { class: "bar" }, element("label", {}, "model", select), pictureInput(stage, give), sampleButtons("detect", give, (picture) => given ?? give(picture))),
    element("div", { class: "columns detect" },
      element("div", {}, stage, caption, heads),
      element("div", {}, element("div", { class: "bar" }, element("label", {}, "score threshold", slider, output)), count, list, time)),
  );
  new ResizeObserver(() => placeLabels(layer, boxes)).observe(layer);
  panel.addEventListener("keydown", ({ key }) => key === "Escape" && choose(null));
  filter();

  async function give(picture) {
    state.detecting?.abort();
    const own = new AbortController();
    state.detecting = own;
    given = picture;
    count.textContent = "detecting …";
    const start = performance.now();
    const found = await attempt(() => api.detect(picture, select.value, LOWEST_SCORE, own.signal));
    const image = found && (await attempt(() => loadBlob(picture)));
    if (own !== state.detecting) return;
    if (!image) return filter();
    state.reading?.abort();
    Object.assign(state, { found, picture, image, maps: [], chosen: null, head: null });
    time.textContent = `answered after ${(performance.now() - start).toFixed(0)} ms`;
    // a detection's index does not depend on the threshold: the list is sorted by score
    boxes = found.detections.map(boxButton);
    rows = found.detections.map(rowButton);
    layer.replaceChildren(...largestFirst(found.detections.map(({ box }) => box)).map((index) => boxes[index]));
    list.replaceChildren(...rows.map((row) => element("li", {}, row)));
    filter();
  }

  function boxButton(detection, index) {
    const style = { ...colours(detection.class), ...placeOf(detection.box, state.found.size) };
    // the keyboard reaches the same detection in the list
    return element("button", { type: "button", class: "box", tabindex: -1, "aria-label": title(detection), style, ...listeners(index) }, element("span", {}, title(detection)));
  }

  function rowButton(detection, index) {
    const style = { ...colours(detection.class), "--share": detection.score };
    return element("button", { type: "button", style, ...listeners(index) },
      element("span", { class: "swatch" }), element("span", {}, detection.label), element("span", {}, detection.score.toFixed(2)));
  }

  function listeners(index) {
    const point = (to) => () => [boxes[index], rows[index]].forEach((one) => one.classList.toggle("pointed", to));
    return { onclick: () => choose(index), onmouseenter: point(true), onmouseleave: point(false), onfocus: point(true), onblur: point(false) };
  }

  function filter() {
    const threshold = Number(slider.value);
    output.textContent = threshold.toFixed(2);
    const all = state.found?.detections ?? [];
    const shown = all.filter(({ score }) => score >= threshold).length;
    all.forEach((_, index) => { boxes[index].hidden = rows[index].parentElement.hidden = index >= shown; });
    count.textContent = shown ? `${shown} of ${all.length} detections` : all.length ? `none of ${all.length} detections: the best is ${title(all[0])}` : state.found ? `no detection has a score of ${LOWEST_SCORE} or more` : "";
    if (state.chosen !== null && state.chosen >= shown) choose(null);
    else draw();
    placeLabels(layer, boxes);
  }

  /** Shows what a box was read from; the same box again, or null, shows the picture. */
  async function choose(index) {
    state.reading?.abort();
    const own = new AbortController();
    const { found, picture, maps } = state;
    const chosen = index === state.chosen ? null : index;
    Object.assign(state, { reading: own, chosen, head: null });
    draw();
    if (chosen === null) return;
    const { offsetTop, offsetHeight } = rows[chosen].parentElement;
    list.scrollTop = Math.min(Math.max(list.scrollTop, offsetTop + offsetHeight - list.clientHeight), offsetTop);
    if (maps[chosen]) return;
    const map = await attempt(() => api.detectAttention(picture, found.model, chosen, own.signal));
    if (map) maps[chosen] = map;
    if (own !== state.reading) return;
    // the error says why
    if (!map) state.chosen = null;
    draw();
  }

  function draw() {
    const { found, image, chosen } = state;
    const map = state.maps[chosen];
    caption.textContent = captionOf(map);
    if (!found) return;
    const [height, width] = found.size;
    drawPicture(canvas, image, found.size);
    if (map) overlay(canvas, map.heads[state.head] ?? map.values, map.grid, 0.6, [map.span[0] / height, map.span[1] / width]);
    [boxes, rows].forEach((buttons) => buttons.forEach((button, index) => button.setAttribute("aria-pressed", index === chosen)));
    layer.classList.toggle("one", chosen !== null);
    canvas.setAttribute("aria-label", map ? caption.textContent : `picture with ${boxes.filter(({ hidden }) => !hidden).length} boxes`);
    const head = (values, index) => {
      const pressed = state.head === index;
      return thumbnail(values, map.grid, `${map.layer}, head ${index + 1}`, `head ${index + 1}`, pressed, () => { state.head = pressed ? null : index; draw(); });
    };
    replaceButtons(heads, ...(map?.heads ?? []).map(head));
  }

  function captionOf(map) {
    if (state.chosen === null) return "drop a picture here; click a box to see what it was read from";
    if (!map) return "reading …";
    const which = !map.heads.length ? "" : state.head === null ? `, mean of ${map.heads.length} heads; click a head to see it alone` : `, head ${state.head + 1}`;
    return `${title(map.detection)}: ${METHODS[map.method] ?? map.method} ${map.layer}${which}`;
  }
}
