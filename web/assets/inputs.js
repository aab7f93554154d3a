// Inputs of views: a model chooser, and a picture chooser.

import * as api from "./api.js";
import { attempt } from "./app.js";
import { element } from "./draw.js";

/** A select of models. */
export function modelSelect(models, onchange = () => {}) {
  const options = models.map(({ name }) => element("option", { value: name }, name));
  return element("select", { onchange, "aria-label": "model" }, ...options);
}

/** A file input for a picture, which can also be dropped on `target`. */
export function pictureInput(target, onpicture) {
  const give = (blob) => blob && onpicture(blob);
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

/** The pictures of the program for a task as buttons; `onload` gets the last of them once they are there. */
export function sampleButtons(task, onpicture, onload = () => {}) {
  const row = element("div", { class: "samples", role: "group", "aria-label": "sample pictures" });
  const button = ({ name, picture }) =>
    element("button", { type: "button", title: name, onclick: () => onpicture(toBlob(picture)) }, element("img", { src: picture, alt: name, width: 40, height: 40 }));
  attempt(() => api.samples(task)).then((all = []) => {
    row.append(...all.map(button));
    if (all.length) onload(toBlob(all.at(-1).picture));
  });
  return row;
}

function toBlob(dataUrl) {
  const bytes = Uint8Array.from(atob(dataUrl.slice(dataUrl.indexOf(",") + 1)), (letter) => letter.charCodeAt(0));
  return new Blob([bytes], { type: "image/png" });
}
