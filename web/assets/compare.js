// One picture under several models, side by side; and how alike the layers of two of them are.

import * as api from "./api.js";
import { attempt } from "./app.js";
import { classes, element, heat, loadImage, overlay } from "./draw.js";
import { chooser, pictures, samples } from "./look.js";

export function compare(panel, known) {
  const side = element("div", { class: "side" });
  const drop = element("div", { class: "stage hint" }, "drop a picture here");
  const all = known.models.filter((model) => model.task === "classify");
  const boxes = all.map(({ name }, index) => element("input", { type: "checkbox", value: name, checked: index < 3 }));
  let picture = null;

  let shown = 0;

  async function show() {
    if (!picture) return;
    shown += 1;
    const own = shown;
    side.replaceChildren();
    for (const { value } of boxes.filter((box) => box.checked)) {
      const told = await attempt(() => api.explain(picture, value, null));
      const image = told && (await attempt(() => loadImage(told.picture)));
      // another picture or choice came meanwhile
      if (!image || own !== shown) return;
      const canvas = element("canvas", { width: 280, height: Math.round((280 * told.size[0]) / told.size[1]), role: "img", "aria-label": `where ${value} looks` });
      canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
      const whole = told.rollout ?? told.cam;
      if (whole) overlay(canvas, whole.values, whole.grid, 0.55);
      const words = told.rollout ? "rollout" : told.cam ? "gradient map" : "";
      side.append(element("div", {}, element("h2", {}, value), element("div", { class: "stage" }, canvas), element("p", { class: "hint" }, words), classes(told.answers)));
    }
  }

  const give = (blob) => { picture = blob; show(); };
  panel.append(
    element("div", { class: "bar" }, pictures(drop, give), samples(give)),
    element("div", { class: "bar" }, ...boxes.map((box) => element("label", {}, box, box.value))),
    drop, side, alike(known));
  boxes.forEach((box) => box.addEventListener("change", show));
}

/** The similarity of layers over a folder of pictures. */
function alike(known) {
  const [rows, columns] = [0, 1].map((index) => {
    const select = chooser(known, () => {});
    select.setAttribute("aria-label", ["rows", "columns"][index]);
    select.selectedIndex = Math.min(index, select.options.length - 1);
    return select;
  });
  const out = element("div", { class: "wide", "aria-live": "polite" });
  let asked = null;
  const ask = async (files) => {
    asked?.abort();
    asked = new AbortController();
    const own = asked;
    out.replaceChildren(element("p", { class: "hint", role: "status" }, "comparing .."));
    const told = await attempt(() => api.similarity([rows.value, columns.value], files, own.signal));
    if (own !== asked) return;
    out.replaceChildren();
    if (!told) return;
    const title = `how alike the layers of ${told.models[0]} (rows) and ${told.models[1]} (columns) are`;
    out.append(heat(told.values, told.rows, told.columns, title), element("p", { class: "hint" }, `${title}: dark is 0, light is 1; linear CKA over ${told.pictures} pictures`));
  };
  const folder = element("input", { type: "file", multiple: true, webkitdirectory: true, onchange: () => {
    const files = [...folder.files].filter((file) => file.type.startsWith("image/"));
    if (files.length) ask(files);
    else attempt(() => { throw new Error("there are no pictures in this folder"); });
  } });
  return element("div", { class: "alike" }, element("h2", {}, "how alike are their layers?"),
    element("div", { class: "bar" }, element("label", {}, "rows", rows), element("label", {}, "columns", columns),
      element("button", { type: "button", onclick: () => ask(null) }, "compare over the samples"), element("label", {}, "or over a folder ", folder)), out);
}
