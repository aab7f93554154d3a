// A sentence and its translations.

import * as api from "./api.js";
import { attempt } from "./app.js";
import { element } from "./draw.js";

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
  const ask = async () => {
    const told = await attempt(() => api.translate(input.value, select.value));
    if (!told) return;
    const row = ({ text, score }) => element("tr", {}, element("td", {}, text), element("td", { class: "number" }, score.toFixed(3)));
    out.replaceChildren(element("table", {}, ...told.translations[0].map(row)));
  };
  panel.append(element("form", { onsubmit: (event) => { event.preventDefault(); ask(); } },
    element("div", { class: "bar" }, element("label", {}, "model", select)), input, element("div", { class: "bar" }, element("button", {}, "translate"))), out);
}
