// A sentence, its translations, and where the model looked: every head small, one of them by words, and the alignment.

import * as api from "./api.js";
import { attempt } from "./app.js";
import { element, heat, map } from "./draw.js";

const KINDS = { cross: "written words at read ones", encoder: "read words at each other", decoder: "written words at those before" };
const plain = (token) => token.replace(/^▁/, "") || token;

export function text(panel, known) {
  const names = known.models.filter((model) => model.task === "translate").map((model) => model.name);
  if (!names.length) {
    panel.append(element("p", {}, "no text model is served; `regard serve --run NAME=FOLDER` adds one"));
    return;
  }
  const select = element("select", { "aria-label": "model" }, ...names.map((name) => element("option", { value: name }, name)));
  const input = element("textarea", { rows: 2, "aria-label": "sentence" });
  input.value = "Io la sto mangiando.";
  const out = element("div", { "aria-live": "polite" });
  const heads = element("div");
  const ask = async () => {
    const told = await attempt(() => api.translate(input.value, select.value));
    if (!told) return;
    const row = ({ text, score }) => element("tr", {}, element("td", {}, text), element("td", { class: "number" }, score.toFixed(3)));
    out.replaceChildren(element("table", {}, ...told.translations[0].map(row)));
    heads.replaceChildren();
    const seen = input.value.trim() && (await attempt(() => api.attend(input.value, select.value)));
    if (seen) heads.replaceChildren(...views(seen));
  };
  panel.append(element("form", { onsubmit: (event) => { event.preventDefault(); ask(); } },
    element("div", { class: "bar" }, element("label", {}, "model", select)), input, element("div", { class: "bar" }, element("button", {}, "translate"))), out, heads);
}

function views(seen) {
  const [source, target] = [seen.source, seen.target].map((tokens) => tokens.map(plain));
  const words = { cross: [target, source], encoder: [source, source], decoder: [target, target] };
  const kinds = Object.keys(KINDS).filter((kind) => seen.layers.some((layer) => layer.kind === kind));
  const state = { kind: kinds[0], layer: null, head: 0, word: 0 };
  const kind = element("select", { "aria-label": "who looks at what", onchange: () => { Object.assign(state, { kind: kind.value, layer: null, head: 0, word: 0 }); draw(); } },
    ...kinds.map((name) => element("option", { value: name }, KINDS[name])));
  const grid = element("div", { class: "grid" });
  const title = element("h2");
  const [from, to] = [element("p", { class: "words" }), element("p", { class: "words" })];

  function draw() {
    const layers = seen.layers.filter((layer) => layer.kind === state.kind);
    state.layer ??= layers.length - 1;
    grid.replaceChildren(...layers.flatMap((layer, index) => layer.heads.map((head, number) => {
      const label = `layer ${index + 1}, head ${number + 1}`;
      const pressed = index === state.layer && number === state.head;
      return element("figure", {}, element("button", { type: "button", "aria-pressed": pressed, onclick: () => { Object.assign(state, { layer: index, head: number }); draw(); } },
        map(head.flat(), [head.length, head[0].length], label), element("figcaption", {}, label)));
    })));
    title.textContent = `layer ${state.layer + 1}, head ${state.head + 1}: point at a word, or move to it with the tab key`;
    const [queries, keys] = words[state.kind];
    from.replaceChildren(...queries.map((word, index) => {
      const choose = () => { state.word = index; shade(); };
      return element("button", { type: "button", class: "word", onmouseenter: choose, onfocus: choose, onclick: choose }, word);
    }));
    to.replaceChildren(...keys.map((word) => element("span", { class: "word" }, word)));
    shade();
  }

  function shade() {
    const weights = seen.layers.filter((layer) => layer.kind === state.kind)[state.layer].heads[state.head][state.word];
    [...from.children].forEach((word, index) => word.setAttribute("aria-pressed", index === state.word));
    [...to.children].forEach((word, index) => {
      word.style.setProperty("--share", weights[index]);
      word.title = `${weights[index].toFixed(3)}`;
    });
  }

  draw();
  const cross = seen.layers.filter((layer) => layer.kind === "cross").flatMap((layer) => layer.heads);
  // the row before a token is that of the step which wrote it
  const written = [...target.slice(1), "</s>"];
  const mean = target.map((_, row) => source.map((_, column) => cross.reduce((sum, head) => sum + head[row][column], 0) / cross.length));
  return [element("div", { class: "bar" }, element("label", {}, "heads", kind)), grid, title, from, to,
    element("h2", {}, "alignment"), element("div", { class: "wide" }, heat(mean, written, source, "what was written against what was read"))];
}
