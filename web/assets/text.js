// A sentence, its translations, and the attention of the model: every head as a thumbnail, one of them word by word, and the alignment.

import * as api from "./api.js";
import { attempt } from "./app.js";
import { element, heatTable, replaceButtons, thumbnail } from "./draw.js";
import { modelSelect } from "./inputs.js";

const KINDS = { cross: "cross-attention: target to source", encoder: "encoder self-attention", decoder: "decoder self-attention" };
const withoutMarker = (token) => token.replace(/^▁/, "") || token;

export function text(panel, models) {
  if (!models.length) {
    panel.append(element("p", {}, "no text model is served; `regard serve --run NAME=FOLDER` adds one"));
    return;
  }
  const select = modelSelect(models);
  const input = element("textarea", { rows: 2, "aria-label": "sentence" });
  input.value = "Io la sto mangiando.";
  const out = element("div", { "aria-live": "polite" });
  const heads = element("div");
  const translate = async () => {
    const result = await attempt(() => api.translate(input.value, select.value));
    if (!result) return;
    const row = ({ text, score }) => element("tr", {}, element("td", {}, text), element("td", { class: "number" }, score.toFixed(3)));
    out.replaceChildren(element("table", {}, ...result.translations[0].map(row)));
    heads.replaceChildren();
    const attention = input.value.trim() && (await attempt(() => api.attend(input.value, select.value)));
    if (attention) heads.replaceChildren(...attentionViews(attention));
  };
  panel.append(element("form", { onsubmit: (event) => { event.preventDefault(); translate(); } },
    element("div", { class: "bar" }, element("label", {}, "model", select)), input, element("div", { class: "bar" }, element("button", {}, "translate"))), out, heads);
}

function attentionViews(attention) {
  const [source, target] = [attention.source, attention.target].map((tokens) => tokens.map(withoutMarker));
  const words = { cross: [target, source], encoder: [source, source], decoder: [target, target] };
  const kinds = Object.keys(KINDS).filter((kind) => attention.layers.some((layer) => layer.kind === kind));
  const state = { kind: kinds[0], layer: null, head: 0, word: 0 };
  const kind = element("select", { "aria-label": "kind of attention", onchange: () => { Object.assign(state, { kind: kind.value, layer: null, head: 0, word: 0 }); draw(); } },
    ...kinds.map((name) => element("option", { value: name }, KINDS[name])));
  const grid = element("div", { class: "grid" });
  const title = element("h2");
  const [from, to] = [element("p", { class: "words" }), element("p", { class: "words" })];

  function draw() {
    const layers = attention.layers.filter((layer) => layer.kind === state.kind);
    state.layer ??= layers.length - 1;
    replaceButtons(grid, ...layers.flatMap((layer, index) => layer.heads.map((head, number) => {
      const label = `layer ${index + 1}, head ${number + 1}`;
      const pressed = index === state.layer && number === state.head;
      return thumbnail(head.flat(), [head.length, head[0].length], label, label, pressed, () => { Object.assign(state, { layer: index, head: number }); draw(); });
    })));
    title.textContent = `layer ${state.layer + 1}, head ${state.head + 1}: hover over a word, or reach it with the Tab key`;
    const [queries, keys] = words[state.kind];
    from.replaceChildren(...queries.map((word, index) => {
      const choose = () => { state.word = index; shade(); };
      return element("button", { type: "button", class: "word", onmouseenter: choose, onfocus: choose, onclick: choose }, word);
    }));
    to.replaceChildren(...keys.map((word) => element("span", { class: "word" }, word)));
    shade();
  }

  function shade() {
    const weights = attention.layers.filter((layer) => layer.kind === state.kind)[state.layer].heads[state.head][state.word];
    [...from.children].forEach((word, index) => word.setAttribute("aria-pressed", index === state.word));
    [...to.children].forEach((word, index) => {
      word.style.setProperty("--share", weights[index]);
      word.title = `${weights[index].toFixed(3)}`;
    });
  }

  draw();
  const cross = attention.layers.filter((layer) => layer.kind === "cross").flatMap((layer) => layer.heads);
  // row i predicts token i + 1
  const predicted = [...target.slice(1), "</s>"];
  const mean = target.map((_, row) => source.map((_, column) => cross.reduce((sum, head) => sum + head[row][column], 0) / cross.length));
  return [element("div", { class: "bar" }, element("label", {}, "attention", kind)), grid, title, from, to,
    element("h2", {}, "alignment"), element("div", { class: "wide" }, heatTable(mean, predicted, source, "target tokens by source tokens"))];
}
