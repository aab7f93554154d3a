// One picture, one model: its classes, and what each patch attends to.

import * as api from "./api.js";
import { attempt } from "./app.js";
import { classes, element, frame, loadImage, overlay, replaceButtons, thumbnail } from "./draw.js";
import { modelSelect, pictureInput, sampleButtons } from "./inputs.js";

export function look(panel, models) {
  const state = { picture: null, query: null, explanation: null, model: null, layer: 0, overlay: "attention", head: null, abort: null };
  const canvas = element("canvas", { width: 448, height: 448, tabindex: 0, role: "img", "aria-label": "no picture yet" });
  const stage = element("div", { class: "stage" }, canvas);
  const predictions = element("div", { "aria-live": "polite" });
  const heads = element("div", { class: "grid" });
  const lens = element("div");
  const time = element("p", { class: "time" });
  const slider = element("input", { type: "range", min: 0, max: 0, value: 0, "aria-label": "layer", oninput: () => { state.layer = Number(slider.value); state.head = null; draw(); } });
  const layer = element("output");
  const overlays = element("select", { "aria-label": "overlay", onchange: () => { state.overlay = overlays.value; draw(); } },
    ...[["attention", "attention of the patch"], ["rollout", "attention rollout"], ["cam", "Grad-CAM"], ["none", "none"]].map(([value, words]) => element("option", { value }, words)));
  const select = modelSelect(models, () => explain());
  const give = (picture) => { state.picture = picture; explain(); };
  panel.append(
    element("div", { class: "bar" }, element("label", {}, "model", select), pictureInput(stage, give), sampleButtons("classify", give, (picture) => state.picture ?? give(picture))),
    element("div", { class: "columns" },
      element("div", {}, stage, element("p", { class: "hint" }, "drop a picture here; click a patch or use the arrow keys to see what it attends to; at first it is the class token"), predictions, time),
      element("div", {}, element("div", { class: "bar" }, element("label", {}, "layer", slider, layer), element("label", {}, "overlay", overlays)), heads, lens)),
  );

  async function explain() {
    if (!state.picture || !select.value) return;
    state.abort?.abort();
    state.abort = new AbortController();
    const start = performance.now();
    const explanation = await attempt(() => api.explain(state.picture, select.value, state.query, state.abort.signal));
    if (!explanation) return;
    const image = await attempt(() => loadImage(explanation.picture));
    if (!image) return;
    const last = Math.max(explanation.layers.length - 1, 0);
    // another model starts at its last layer
    const fresh = state.model === explanation.model ? { layer: Math.min(state.layer, last) } : { layer: last, head: null };
    Object.assign(state, { explanation, image, model: explanation.model, ...fresh });
    slider.max = last;
    slider.value = state.layer;
    predictions.replaceChildren(classes(explanation.answers));
    time.textContent = `answered after ${(performance.now() - start).toFixed(0)} ms`;
    draw();
  }

  function draw() {
    const { explanation, image } = state;
    if (!explanation) return;
    const context = canvas.getContext("2d");
    canvas.height = Math.round((canvas.width * explanation.size[0]) / explanation.size[1]);
    context.imageSmoothingEnabled = false;
    context.drawImage(image, 0, 0, canvas.width, canvas.height);
    const current = explanation.layers[state.layer];
    layer.textContent = current ? current.name : "none";
    const whole = { rollout: explanation.rollout, cam: explanation.cam }[state.overlay];
    if (whole) overlay(canvas, whole.values, whole.grid);
    if (state.overlay === "attention" && current?.reach === "everywhere") overlay(canvas, state.head === null ? mean(current.heads) : current.heads[state.head], current.grid);
    if (current?.query) frame(canvas, current.query, current.of);
    canvas.setAttribute("aria-label", `${explanation.answers[0]?.label ?? "picture"}, ${state.overlay} of ${current?.name ?? "the model"}${current?.query ? `, row ${current.query[0] + 1}, column ${current.query[1] + 1}` : ""}`);
    const head = (values, index) => {
      const name = `${current.reach === "everywhere" ? "head" : "kernel"} ${index + 1}`;
      const pressed = state.head === index;
      return thumbnail(values, current.grid, `${current.name}, ${name}`, name, pressed, () => { state.head = pressed ? null : index; draw(); });
    };
    replaceButtons(heads, ...(current ? current.heads.map(head) : [element("p", { class: "hint" }, "this model has no attention to show")]));
    const rows = explanation.lens.map(({ layer: name, answers: [first] }) => element("tr", {}, element("td", {}, name), element("td", {}, first.label), element("td", { class: "number" }, first.probability.toFixed(3))));
    lens.replaceChildren(...(rows.length ? [element("h2", {}, "what each layer would answer (logit lens)"), element("table", {}, ...rows)] : []));
  }

  canvas.addEventListener("click", (event) => {
    const bounds = canvas.getBoundingClientRect();
    state.query = [(event.clientY - bounds.top) / bounds.height, (event.clientX - bounds.left) / bounds.width];
    explain();
  });
  canvas.addEventListener("keydown", (event) => {
    const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    const current = state.explanation?.layers[state.layer];
    if (!step || !current) return;
    event.preventDefault();
    const from = current.query ?? current.of.map((side) => Math.floor(side / 2));
    state.query = from.map((index, axis) => (Math.min(Math.max(index + step[axis], 0), current.of[axis] - 1) + 0.5) / current.of[axis]);
    explain();
  });
}

function mean(heads) {
  return heads[0].map((_, i) => heads.reduce((sum, head) => sum + head[i], 0) / heads.length);
}
