// One picture under several models, side by side; and the similarity of the layers of two of them.

import * as api from "./api.js";
import { attempt } from "./app.js";
import { classes, element, heatTable, loadImage, overlay } from "./draw.js";
import { modelSelect, pictureInput, sampleButtons } from "./inputs.js";

export function compare(panel, models) {
  const side = element("div", { class: "side" });
  const drop = element("div", { class: "stage hint" }, "drop a picture here");
  const checkboxes = models.map(({ name }, index) => element("input", { type: "checkbox", value: name, checked: index < 3 }));
  let picture = null;
  let latest = 0;

  async function show() {
    if (!picture) return;
    latest += 1;
    const own = latest;
    side.replaceChildren();
    for (const { value } of checkboxes.filter((checkbox) => checkbox.checked)) {
      const explanation = await attempt(() => api.explain(picture, value, null));
      const image = explanation && (await attempt(() => loadImage(explanation.picture)));
      // the picture or the choice changed meanwhile
      if (!image || own !== latest) return;
      const canvas = element("canvas", { width: 280, height: Math.round((280 * explanation.size[0]) / explanation.size[1]), role: "img", "aria-label": `where ${value} looks` });
      canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
      const heatmap = explanation.rollout ?? explanation.cam;
      if (heatmap) overlay(canvas, heatmap.values, heatmap.grid, 0.55);
      const caption = explanation.rollout ? "attention rollout" : explanation.cam ? "Grad-CAM" : "";
      side.append(element("div", {}, element("h2", {}, value), element("div", { class: "stage" }, canvas), element("p", { class: "hint" }, caption), classes(explanation.answers)));
    }
  }

  const give = (blob) => { picture = blob; show(); };
  panel.append(
    element("div", { class: "bar" }, pictureInput(drop, give), sampleButtons("classify", give)),
    element("div", { class: "bar" }, ...checkboxes.map((checkbox) => element("label", {}, checkbox, checkbox.value))),
    drop, side, similarity(models));
  checkboxes.forEach((checkbox) => checkbox.addEventListener("change", show));
}

/** The similarity of layers over a folder of pictures. */
function similarity(models) {
  const [rows, columns] = [0, 1].map((index) => {
    const select = modelSelect(models);
    select.setAttribute("aria-label", ["rows", "columns"][index]);
    select.selectedIndex = Math.min(index, select.options.length - 1);
    return select;
  });
  const out = element("div", { class: "wide", "aria-live": "polite" });
  let abort = null;
  const compare = async (files) => {
    abort?.abort();
    abort = new AbortController();
    const own = abort;
    out.replaceChildren(element("p", { class: "hint", role: "status" }, "comparing …"));
    const result = await attempt(() => api.similarity([rows.value, columns.value], files, own.signal));
    if (own !== abort) return;
    out.replaceChildren();
    if (!result) return;
    const title = `similarity of the layers of ${result.models[0]} (rows) and ${result.models[1]} (columns)`;
    out.append(heatTable(result.values, result.rows, result.columns, title), element("p", { class: "hint" }, `${title}: dark is 0, light is 1; linear CKA over ${result.pictures} pictures`));
  };
  const folder = element("input", { type: "file", multiple: true, webkitdirectory: true, onchange: () => {
    const files = [...folder.files].filter((file) => file.type.startsWith("image/"));
    if (files.length) compare(files);
    else attempt(() => { throw new Error("there are no pictures in this folder"); });
  } });
  return element("div", { class: "similarity" }, element("h2", {}, "similarity of layers"),
    element("div", { class: "bar" }, element("label", {}, "rows", rows), element("label", {}, "columns", columns),
      element("button", { type: "button", onclick: () => compare(null) }, "compare over the samples"), element("label", {}, "or over a folder ", folder)), out);
}
