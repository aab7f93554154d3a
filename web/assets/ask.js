// A question about a picture: its answer, and what words and regions have to do with each other; hover or reach either side.

import * as api from "./api.js";
import { attempt } from "./app.js";
import { LONGER_SIDE, colours, drawPicture, largestFirst, loadBlob, placeLabels, placeOf } from "./boxes.js";
import { classes, element, heatTable, percent, replaceButtons, thumbnail } from "./draw.js";
import { modelSelect, pictureInput, sampleButtons } from "./inputs.js";

/** Who looks at whom. */
const RELATIONS = { "words-to-regions": "words look at regions", "regions-to-words": "regions look at words", plan: "transport plan of the alignment" };

const mean = (matrices) => matrices[0].map((row, y) => row.map((_, x) => matrices.reduce((sum, matrix) => sum + matrix[y][x], 0) / matrices.length));
const transposed = (matrix) => matrix[0].map((_, x) => matrix.map((row) => row[x]));
const isWord = (token) => !/^\[.*\]$/.test(token);

export function ask(panel, models) {
  const able = models.filter(({ answers, pictures }) => answers && pictures === 1);
  if (!able.length) {
    panel.append(element("p", {}, "no model that answers questions is served; `regard serve --model FOLDER` adds a run of `regard train questions`"));
    return;
  }
  // `pinned` stays chosen when the pointer leaves: `["word", 3]` or `["region", 0]`
  const state = { found: null, relation: "words-to-regions", layer: null, head: null, pointed: null, pinned: null, asking: null };
  let [picture, boxes, rows, words] = [null, [], [], []];

  const canvas = element("canvas", { width: LONGER_SIDE, height: LONGER_SIDE, role: "img", "aria-label": "no picture yet", onclick: () => pin(null) });
  const layer = element("div", { class: "boxes" });
  const stage = element("div", { class: "stage large" }, canvas, layer);
  const caption = element("p", { class: "hint", role: "status" });
  const suggestions = element("datalist", { id: "questions" });
  const input = element("input", { type: "text", class: "question", list: "questions", "aria-label": "question", placeholder: "what colour is the bag ?", autocomplete: "off" });
  const answers = element("div", { "aria-live": "polite" });
  const note = element("p", { class: "hint" });
  const sentence = element("p", { class: "words", role: "group", "aria-label": "words of the question" });
  const list = element("ol", { class: "detections", "aria-label": "regions" });
  const relation = element("select", { "aria-label": "who looks at whom", onchange: () => { state.relation = relation.value; draw(); } });
  const layers = element("select", { "aria-label": "layer", onchange: () => { state.layer = layers.value === "" ? null : Number(layers.value); draw(); } });
  const heads = element("div", { class: "grid" });
  const table = element("div", { class: "wide" });
  const tableTitle = element("h2");
  const time = element("p", { class: "time" });
  const select = modelSelect(able, () => send());
  const form = element("form", { class: "bar", onsubmit: (event) => { event.preventDefault(); send(); } },
    element("label", { class: "wider" }, "question", input), suggestions, element("button", {}, "ask"));
  const choose = ({ blob, sample }) => {
    picture = blob;
    if (sample?.question) input.value = sample.question;
    send();
  };
  const samples = sampleButtons("ask", (blob, sample) => choose({ blob, sample }), (blob, sample, all) => {
    suggestions.replaceChildren(...all.map(({ question }) => element("option", { value: question })));
    if (!picture) choose({ blob, sample });
  });
  // what changes its height is below what is pointed at
  const seen = element("div", { class: "columns detect", hidden: true },
    element("div", {}, sentence, stage, caption),
    element("div", {}, answers, note, element("h2", {}, "regions"), list,
      element("h2", {}, "attention"), element("div", { class: "bar" }, relation, element("label", {}, "layer", layers)), heads, tableTitle, table, time));
  panel.append(element("div", { class: "bar" }, element("label", {}, "model", select), pictureInput(panel, (blob) => choose({ blob })), samples), form, seen);
  new ResizeObserver(() => placeLabels(layer, boxes)).observe(layer);
  panel.addEventListener("keydown", ({ key }) => key === "Escape" && pin(null));

  async function send() {
    if (!picture) return;
    state.asking?.abort();
    const own = new AbortController();
    state.asking = own;
    const start = performance.now();
    const found = await attempt(() => api.ask(picture, input.value, select.value, own.signal));
    const image = found && (await attempt(() => loadBlob(picture)));
    if (own !== state.asking || !image) return;
    time.textContent = `answered after ${(performance.now() - start).toFixed(0)} ms`;
    const kept = found.model === state.found?.model ? {} : { layer: null, head: null };
    Object.assign(state, { found, pointed: null, pinned: null }, kept);
    seen.hidden = false;
    answers.replaceChildren(classes(found.answers.map(({ answer, probability }) => ({ label: answer, probability }))));
    note.textContent = found.unknown.length ? `words that the model does not know: ${found.unknown.join(", ")}` : "";
    drawPicture(canvas, image, found.size);
    canvas.setAttribute("aria-label", `picture with ${found.regions.length} regions`);
    boxes = found.regions.map((box, index) => element("button", { type: "button", class: "box", tabindex: -1, "aria-label": `region ${index + 1}`, style: { ...colours(index), ...placeOf(box, found.size) }, ...listeners("region", index) }, element("span", {}, `${index + 1}`)));
    layer.replaceChildren(...largestFirst(found.regions).map((index) => boxes[index]));
    rows = found.regions.map((_, index) => element("button", { type: "button", style: colours(index), ...listeners("region", index) },
      element("span", { class: "swatch" }), element("span", {}, `${index + 1}`, explained(index)), element("span", { class: "share" })));
    list.replaceChildren(...rows.map((row) => element("li", {}, row)));
    words = found.tokens.map((token, index) => element("button", { type: "button", class: isWord(token) ? "word shaded" : "word shaded special", ...listeners("word", index) }, token));
    sentence.replaceChildren(...words);
    const { attention } = found;
    const names = Object.keys(RELATIONS).filter((name) => name === "plan" ? attention.plan : attention.layers.some(({ direction }) => direction === name));
    if (!names.includes(state.relation)) state.relation = names[0];
    relation.replaceChildren(...names.map((name) => element("option", { value: name, selected: name === state.relation }, RELATIONS[name])));
    draw();
  }

  /** The words that look at a region more than at others, after its number. */
  function explained(index) {
    const { words } = state.found.attention.explained[index];
    return words.length ? element("small", {}, ` ${words.slice(0, 4).map(({ word }) => state.found.tokens[word]).join(", ")}`) : element("small");
  }

  function listeners(kind, index) {
    const point = (pointed) => () => { state.pointed = pointed; shade(); };
    const on = point([kind, index]);
    return { onclick: () => pin([kind, index]), onmouseenter: on, onmouseleave: point(null), onfocus: on, onblur: point(null) };
  }

  /** Keeps a word or a region chosen; the same again, or null, lets it go. */
  function pin(what) {
    const [kind, index] = state.pinned ?? [];
    state.pinned = what && kind === what[0] && index === what[1] ? null : what;
    state.pointed = null;
    shade();
  }

  /** The layers of the chosen direction; none for the plan. */
  const ofRelation = () => state.found.attention.layers.filter(({ direction }) => direction === state.relation);

  /** `[word][region]` of the chosen relation, layer and head. */
  function matrix() {
    const { attention } = state.found;
    if (state.relation === "plan") return attention.plan.shares;
    const all = ofRelation();
    const chosen = state.layer === null ? all : [all[state.layer]];
    const matrices = chosen.flatMap(({ heads }) => (state.head === null ? heads : [heads[state.head]]));
    return state.relation === "words-to-regions" ? mean(matrices) : transposed(mean(matrices));
  }

  function draw() {
    const { found } = state;
    const all = ofRelation();
    state.layer = state.layer < all.length ? state.layer : null;
    layers.disabled = !all.length;
    layers.replaceChildren(element("option", { value: "" }, "all, on average"),
      ...all.map(({ layer }, index) => element("option", { value: index, selected: index === state.layer }, layer)));
    const shown = state.layer === null ? all : [all[state.layer]];
    const count = all[0]?.heads.length ?? 0;
    state.head = state.head < count ? state.head : null;
    const head = (number) => {
      const values = mean(shown.map(({ heads }) => heads[number]));
      const pressed = state.head === number;
      return thumbnail(values.flat(), [values.length, values[0].length], `head ${number + 1}: ${RELATIONS[state.relation]}`, `head ${number + 1}`, pressed, () => { state.head = pressed ? null : number; draw(); });
    };
    replaceButtons(heads, ...Array.from({ length: count }, (_, number) => head(number)));
    const values = matrix();
    tableTitle.textContent = [RELATIONS[state.relation], ...(count ? [state.layer === null ? "all layers" : all[state.layer].layer, state.head === null ? `mean of ${count} heads` : `head ${state.head + 1}`] : [found.attention.plan?.trained ? "learned" : "of a model that was not trained to align"])].join(", ");
    table.replaceChildren(heatTable(values, found.tokens, found.regions.map((_, index) => `region ${index + 1}`), tableTitle.textContent, undefined, Math.max(...values.flat(), 1e-9)));
    shade();
  }

  /** Shades the other side of what is pointed at; with nothing pointed at, what mattered for the answer. */
  function shade() {
    const { found, relation } = state;
    if (!found) return;
    const [kind, index] = state.pointed ?? state.pinned ?? [];
    const values = matrix();
    const { relevance } = found.attention;
    const ofRegions = kind === "word" ? values[index] : kind === "region" ? null : relevance?.regions;
    const ofWords = kind === "region" ? values.map((row) => row[index]) : kind === "word" ? null : relevance?.words;
    layer.classList.toggle("shaded", Boolean(ofRegions));
    paint(boxes, ofRegions, kind === "region" ? index : null);
    paint(rows, ofRegions, kind === "region" ? index : null);
    paint(words, ofWords, kind === "word" ? index : null);
    boxes.forEach((box, number) => {
      box.firstChild.textContent = ofRegions ? `${number + 1} · ${percent(ofRegions[number])}` : `${number + 1}`;
    });
    placeLabels(layer, boxes);
    rows.forEach((row, number) => { row.lastChild.textContent = ofRegions ? percent(ofRegions[number]) : ""; });
    words.forEach((word, number) => { word.title = ofWords ? percent(ofWords[number]) : ""; });
    caption.textContent = captionOf(kind, index, relation, relevance);
  }

  /** Colours by the share of the largest, so that small numbers are seen, too. */
  function paint(nodes, values, chosen) {
    const most = Math.max(...(values ?? []), 1e-9);
    const { pinned } = state;
    nodes.forEach((node, index) => {
      node.style.setProperty("--share", values ? values[index] / most : 0);
      node.classList.toggle("pointed", index === chosen);
      node.setAttribute("aria-pressed", index === chosen && pinned?.[1] === index && (nodes === words ? "word" : "region") === pinned[0]);
    });
  }

  function captionOf(kind, index, relation, relevance) {
    const { found } = state;
    const name = kind === "word" ? `“${found.tokens[index]}”` : `region ${index + 1}`;
    if (kind && relation === "plan") return `${name}: ${kind === "word" ? "where the plan moves it" : "which words the plan moves to it"}`;
    if (kind) return (relation === "words-to-regions") === (kind === "word") ? `what ${name} looks at` : `which ${kind === "word" ? "regions" : "words"} look at ${name}`;
    if (relevance) return `brighter regions and darker words mattered more for “${found.answers[0].answer}”; point at either to see the attention between them`;
    return "point at a word or a region to see the attention between them";
  }
}
