// A clip: its film strip, what a model answers, and where the class token or a clicked patch looks in all frames.

import * as api from "./api.js";
import { attempt } from "./app.js";
import { classes, element, frame, loadImage, normalised, overlay, percent, replaceButtons } from "./draw.js";
import { clipInput, clipButtons, modelSelect } from "./inputs.js";

/** Pixels of the longer side of the large frame and of one in the strip. */
const LARGE = 512;
const SMALL = 96;
/** Milliseconds of a frame when the clip plays. */
const PERIOD = 250;
/** How many of the strongest patches are told. */
const STRONGEST = 5;
const ROLLOUT = "rollout";

export function clips(panel, models) {
  if (!models.length) {
    panel.append(element("p", {}, "no model of video is served; `regard serve --model timesformer-nano` adds one"));
    return;
  }
  // `found` is the server's answer; `query` is a frame, a row and a column from 0 to 1, or null for the class token
  const state = { clip: null, found: null, images: [], query: null, frame: 0, layer: null, head: null, asking: null, timer: null };
  const canvas = element("canvas", { width: LARGE, height: LARGE, role: "img", "aria-label": "no clip yet", onclick: look });
  const stage = element("div", { class: "stage large" }, canvas);
  const caption = element("p", { class: "hint", role: "status" }, "drop a clip here: a GIF, an MP4, or several pictures");
  const strip = element("div", { class: "strip", role: "group", "aria-label": "frames" });
  const slider = element("input", { type: "range", min: 0, max: 0, step: 1, value: 0, "aria-label": "frame", oninput: () => show(Number(slider.value)) });
  const play = element("button", { type: "button", "aria-pressed": false, onclick: toggle }, "play");
  const reset = element("button", { type: "button", onclick: () => ask(null) }, "class token");
  const layers = element("select", { "aria-label": "layer", onchange: () => { state.layer = layers.value; state.head = null; draw(); } });
  const heads = element("select", { "aria-label": "head", onchange: () => { state.head = heads.value === "" ? null : Number(heads.value); draw(); } });
  const answers = element("div");
  const strongest = element("p", { class: "hint" });
  const select = modelSelect(models, () => state.clip && give(state.clip));
  panel.append(
    element("div", { class: "bar" }, element("label", {}, "model", select), clipInput(stage, give), clipButtons(give, (clip) => state.clip ?? give(clip))),
    element("div", { class: "columns detect" },
      element("div", {}, stage, element("div", { class: "bar" }, play, element("label", {}, "frame", slider), reset), caption),
      element("div", {}, answers, element("div", { class: "bar" }, element("label", {}, "layer", layers), element("label", {}, "head", heads)), strongest)),
    strip,
  );

  /** A blob, or a list of blobs that are its frames. */
  function give(clip) {
    Object.assign(state, { clip, layer: null, head: null, frame: 0 });
    return ask(null);
  }

  async function ask(query) {
    if (!state.clip) return;
    state.asking?.abort();
    const own = new AbortController();
    state.asking = own;
    caption.textContent = "looking …";
    const found = await attempt(() => api.clipAttention(state.clip, select.value, query, own.signal));
    const images = found && (await attempt(() => Promise.all(found.pictures.map(loadImage))));
    if (own !== state.asking) return;
    if (!images) return draw();
    Object.assign(state, { found, images, query });
    const names = [...(found.rollout && !query ? [ROLLOUT] : []), ...found.layers.map(({ layer }) => layer)];
    layers.replaceChildren(...names.map((name) => element("option", { value: name }, name)));
    if (!names.includes(state.layer)) Object.assign(state, { layer: names.at(-1) ?? null, head: null });
    if (state.layer) layers.value = state.layer;
    slider.max = images.length - 1;
    answers.replaceChildren(classes(found.answers));
    replaceButtons(strip, ...images.map((_, index) => frameButton(index)));
    show(Math.min(state.frame, images.length - 1));
  }

  function frameButton(index) {
    const small = element("canvas", { width: SMALL, height: SMALL });
    return element("button", { type: "button", "aria-label": `frame ${index}`, onclick: () => show(index) }, small);
  }

  /** The patch under the pointer asks what it looks at in all frames. */
  function look({ offsetX, offsetY }) {
    if (!state.found) return;
    stop();
    ask({ frame: state.frame, x: offsetX / canvas.clientWidth, y: offsetY / canvas.clientHeight });
  }

  function show(index) {
    state.frame = index;
    slider.value = index;
    draw();
  }

  function toggle() {
    if (state.timer) return stop();
    if (!state.images.length) return;
    play.setAttribute("aria-pressed", true);
    state.timer = setInterval(() => show((state.frame + 1) % state.images.length), PERIOD);
  }

  function stop() {
    clearInterval(state.timer);
    state.timer = null;
    play.setAttribute("aria-pressed", false);
  }

  /** The map that is shown: numbers from 0 to 1 over the whole clip, frame by frame. */
  function map() {
    const { found, layer, head } = state;
    const chosen = layer === ROLLOUT ? found.rollout : found.layers.find((one) => one.layer === layer);
    if (!chosen) return null;
    const values = chosen.heads[head] ?? mean(chosen.heads);
    return { ...chosen, values: normalised(values), raw: values };
  }

  function draw() {
    const { found, images, query } = state;
    if (!found) return;
    const shown = map();
    const names = ["mean", ...(shown && state.layer !== ROLLOUT ? shown.heads.map((_, index) => `head ${index + 1}`) : [])];
    heads.replaceChildren(...names.map((name, index) => element("option", { value: index ? index - 1 : "" }, name)));
    heads.value = state.head ?? "";
    const [rows, columns] = found.size;
    stage.style.setProperty("--aspect", columns / rows);
    paint(canvas, LARGE, state.frame, shown);
    [...strip.children].forEach((button, index) => {
      paint(button.firstChild, SMALL, index, shown);
      button.setAttribute("aria-pressed", index === state.frame);
    });
    // a model without a class token is asked for the middle of the clip
    const usual = shown?.query && !query ? "the middle of the clip" : "the class token";
    if (!query) reset.textContent = usual.replace("the ", "");
    const who = query ? `the patch at ${percent(query.y)} of the height and ${percent(query.x)} of the width of frame ${query.frame}` : usual;
    caption.textContent = shown ? `where ${who} looks: ${state.layer}; click a patch to ask another` : "this model has no attention";
    canvas.setAttribute("aria-label", `frame ${state.frame} of ${images.length}, number ${found.frames[state.frame]} of the clip: ${caption.textContent}`);
    strongest.textContent = shown ? `most of it: ${best(shown).join(", ")}` : "";
  }

  function paint(target, side, index, shown) {
    const image = state.images[index];
    const scale = side / Math.max(image.width, image.height);
    [target.width, target.height] = [image.width, image.height].map((length) => Math.round(length * scale));
    const context = target.getContext("2d");
    context.imageSmoothingEnabled = false;
    context.drawImage(image, 0, 0, target.width, target.height);
    if (!shown) return;
    const [frames, rows, columns] = shown.size;
    const at = Math.floor((index * frames) / state.images.length);
    // all frames have one scale
    overlay(target, shown.values.slice(at * rows * columns, (at + 1) * rows * columns), [rows, columns], 0.6, [1, 1], true);
    const own = state.query && shown.query;
    if (own && Math.floor((own[0] * state.images.length) / frames) === index) frame(target, [own[1], own[2]], [rows, columns]);
  }

  function best({ raw, size: [, rows, columns] }) {
    const order = raw.map((value, index) => [value, index]).sort(([a], [b]) => b - a).slice(0, STRONGEST);
    const sum = raw.reduce((all, value) => all + value, 0) || 1;
    return order.map(([value, index]) => `frame ${Math.floor(index / (rows * columns))} row ${Math.floor(index / columns) % rows} column ${index % columns} (${percent(value / sum)})`);
  }
}

function mean(heads) {
  return heads[0].map((_, index) => heads.reduce((sum, head) => sum + head[index], 0) / heads.length);
}
