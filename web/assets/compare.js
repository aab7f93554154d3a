// One picture under several models, side by side.

import * as api from "./api.js";
import { attempt } from "./app.js";
import { classes, element, loadImage, overlay } from "./draw.js";
import { pictures } from "./look.js";

export function compare(panel, known) {
  const side = element("div", { class: "side" });
  const drop = element("div", { class: "stage hint" }, "drop a picture here");
  const all = known.models.filter((model) => model.task === "classify");
  const boxes = all.map(({ name }, index) => element("input", { type: "checkbox", value: name, checked: index < 3 }));
  let picture = null;

  async function show() {
    if (!picture) return;
    side.replaceChildren();
    for (const { value } of boxes.filter((box) => box.checked)) {
      const told = await attempt(() => api.explain(picture, value, null));
      const image = told && (await attempt(() => loadImage(told.picture)));
      if (!image) return;
      const canvas = element("canvas", { width: 280, height: Math.round((280 * told.size[0]) / told.size[1]), role: "img", "aria-label": `where ${value} looks` });
      canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
      const whole = told.rollout ?? told.cam;
      if (whole) overlay(canvas, whole.values, whole.grid, 0.55);
      const words = told.rollout ? "rollout" : told.cam ? "gradient map" : "";
      side.append(element("div", {}, element("h2", {}, value), element("div", { class: "stage" }, canvas), element("p", { class: "hint" }, words), classes(told.answers)));
    }
  }

  panel.append(
    element("div", { class: "bar" }, pictures(drop, (blob) => { picture = blob; show(); }), ...boxes.map((box) => element("label", {}, box, box.value))),
    drop, side);
  boxes.forEach((box) => box.addEventListener("change", show));
}
