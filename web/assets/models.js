// The models, and what they cost.

import { element } from "./draw.js";

const short = (count) => (count >= 1e9 ? `${(count / 1e9).toFixed(2)} G` : count >= 1e6 ? `${(count / 1e6).toFixed(2)} M` : `${count}`);

export function table(panel, models) {
  const head = ["model", "family", "parameters", "multiply-adds", "picture", "classes"];
  const cell = (value, index) => element("td", { class: index > 1 ? "number" : undefined }, value);
  const row = (model) => [model.name, model.family ?? model.task, model.parameters ? short(model.parameters) : "", model.multiply_adds ? short(model.multiply_adds) : "", model.image ? [model.frames ?? [], model.image].flat().join(" x ") : "", model.classes ?? ""];
  panel.append(element("div", { class: "wide" }, element("table", {},
    element("thead", {}, element("tr", {}, ...head.map((name, index) => element("th", { class: index > 1 ? "number" : undefined, scope: "col" }, name)))),
    element("tbody", {}, ...models.map((model) => element("tr", {}, ...row(model).map(cell)))))));
}
