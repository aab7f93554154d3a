// One picture, one model: what it is taken for, and what each patch attends to.

import * as api from "./api.js";
import { attempt } from "./app.js";
import { classes, element, frame, loadImage, map, overlay } from "./draw.js";

/** A chooser of models that read pictures. */
export function chooser(known, onchange) {
  const names = known.models.filter((model) => model.task === "classify").map((model) => model.name);
  const select = element("select", { onchange: () => onchange(select.value), "aria-label": "model" });
  select.append(...names.map((name) => element("option", { value: name }, name)));
  return select;
}

/** Ways to give a picture: a file, or a drop. */
export function pictures(target, ongiven) {
  const give = (blob) => blob && ongiven(blob);
  const input = element("input", { type: "file", accept: "image/*", onchange: () => give(input.files[0]) });
  for (const kind of ["dragover", "dragleave", "drop"]) {
    target.addEventListener(kind, (event) => {
      event.preventDefault();
      target.classList.toggle("over", kind === "dragover");
      if (kind === "drop") give(event.dataTransfer.files[0]);
    });
  }
  return element("label", { class: "file" }, "choose a picture", input);
}

/** The pictures of the program as buttons; `first` is what happens with the last of them once they are there. */
export function samples(ongiven, first = () => {}) {
  const row = element("div", { class: "samples", role: "group", "aria-label": "sample pictures" });
  const button = ({ name, picture }) =>
    element("button", { type: "button", title: name, onclick: () => ongiven(blob(picture)) }, element("img", { src: picture, alt: name, width: 40, height: 40 }));
  attempt(api.samples).then((all = []) => {
    row.append(...all.map(button));
    if (all.length) first(blob(all.at(-1).picture));
  });
  return row;
}

function blob(address) {
  const bytes = Uint8Array.from(atob(address.slice(address.indexOf(",") + 1)), (letter) => letter.charCodeAt(0));
  return new Blob([bytes], { type: "image/png" });
}

export function look(panel, known) {
  const state = { picture: null, query: null, told: null, layer: 0, shown: "attention", head: null, asked: null };
  const canvas = element("canvas", { width: 448, height: 448, tabindex: 0, role: "img", "aria-label": "no picture yet" });
  const stage = element("div", { class: "stage" }, canvas);
  const answers = element("div", { "aria-live": "polite" });
  const heads = element("div", { class: "grid" });
  const lens = element("div");
  const time = element("p", { class: "time" });
  const slider = element("input", { type: "range", min: 0, max: 0, value: 0, "aria-label": "layer", oninput: () => { state.layer = Number(slider.value); state.head = null; draw(); } });
  const layer = element("output");
  const shown = element("select", { "aria-label": "what is shown", onchange: () => { state.shown = shown.value; draw(); } },
    ...[["attention", "attention of the patch"], ["rollout", "rollout over all layers"], ["cam", "gradient map of the class"], ["none", "the picture alone"]].map(([value, words]) => element("option", { value }, words)));
  const select = chooser(known, () => ask());
  const give = (picture) => { state.picture = picture; ask(); };
  panel.append(
    element("div", { class: "bar" }, element("label", {}, "model", select), pictures(stage, give), samples(give, (picture) => state.picture ?? give(picture))),
    element("div", { class: "columns" },
      element("div", {}, stage, element("p", { class: "hint" }, "drop a picture here; click a patch, or move it with the arrow keys; the class token looks until then"), answers, time),
      element("div", {}, element("div", { class: "bar" }, element("label", {}, "layer", slider, layer), element("label", {}, "show", shown)), heads, lens)),
  );

  async function ask() {
    if (!state.picture || !select.value) return;
    state.asked?.abort();
    state.asked = new AbortController();
    const start = performance.now();
    const told = await attempt(() => api.explain(state.picture, select.value, state.query, state.asked.signal));
    if (!told) return;
    const image = await attempt(() => loadImage(told.picture));
    if (!image) return;
    Object.assign(state, { told, image, layer: Math.min(state.layer, Math.max(told.layers.length - 1, 0)) });
    if (state.first !== told.model) Object.assign(state, { first: told.model, layer: Math.max(told.layers.length - 1, 0), head: null });
    slider.max = Math.max(told.layers.length - 1, 0);
    slider.value = state.layer;
    answers.replaceChildren(classes(told.answers));
    time.textContent = `answered after ${(performance.now() - start).toFixed(0)} ms`;
    draw();
  }

  function draw() {
    const { told, image } = state;
    if (!told) return;
    const context = canvas.getContext("2d");
    canvas.height = Math.round((canvas.width * told.size[0]) / told.size[1]);
    context.imageSmoothingEnabled = false;
    context.drawImage(image, 0, 0, canvas.width, canvas.height);
    const now = told.layers[state.layer];
    layer.textContent = now ? now.name : "none";
    const whole = { rollout: told.rollout, cam: told.cam }[state.shown];
    if (whole) overlay(canvas, whole.values, whole.grid);
    if (state.shown === "attention" && now?.reach === "everywhere") overlay(canvas, state.head === null ? mean(now.heads) : now.heads[state.head], now.grid);
    if (now?.query) frame(canvas, now.query, now.of);
    canvas.setAttribute("aria-label", `${told.answers[0]?.label ?? "picture"}, ${state.shown} of ${now?.name ?? "the model"}${now?.query ? `, row ${now.query[0] + 1}, column ${now.query[1] + 1}` : ""}`);
    const thumbnail = (values, index) => {
      const pressed = state.head === index;
      return element("figure", {}, element("button", { type: "button", "aria-pressed": pressed, onclick: () => { state.head = pressed ? null : index; draw(); } },
        map(values, now.grid, `${now.name}, head ${index + 1}`), element("figcaption", {}, `${now.reach === "everywhere" ? "head" : "kernel"} ${index + 1}`)));
    };
    heads.replaceChildren(...(now ? now.heads.map(thumbnail) : [element("p", { class: "hint" }, "this model has no attention to show")]));
    const rows = told.lens.map(({ layer: name, answers: [first] }) => element("tr", {}, element("td", {}, name), element("td", {}, first.label), element("td", { class: "number" }, first.probability.toFixed(3))));
    lens.replaceChildren(...(rows.length ? [element("h2", {}, "what each layer would answer"), element("table", {}, ...rows)] : []));
  }

  canvas.addEventListener("click", (event) => {
    const box = canvas.getBoundingClientRect();
    state.query = [(event.clientY - box.top) / box.height, (event.clientX - box.left) / box.width];
    ask();
  });
  canvas.addEventListener("keydown", (event) => {
    const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    const now = state.told?.layers[state.layer];
    if (!step || !now) return;
    event.preventDefault();
    const from = now.query ?? now.of.map((side) => Math.floor(side / 2));
    state.query = from.map((place, axis) => (Math.min(Math.max(place + step[axis], 0), now.of[axis] - 1) + 0.5) / now.of[axis]);
    ask();
  });
}

function mean(heads) {
  return heads[0].map((_, i) => heads.reduce((sum, head) => sum + head[i], 0) / heads.length);
}
