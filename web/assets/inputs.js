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
  onDrop(target, (files) => give(files[0]));
  return element("label", { class: "file" }, "choose a picture", input);
}

/** Takes the files that are dropped on an element. */
function onDrop(target, ondrop) {
  for (const kind of ["dragover", "dragleave", "drop"]) {
    target.addEventListener(kind, (event) => {
      event.preventDefault();
      target.classList.toggle("over", kind === "dragover");
      if (kind === "drop") ondrop(event.dataTransfer.files);
    });
  }
}

/** A file input for a clip: a video, or several pictures that are its frames in the order of their names. */
export function clipInput(target, onclip) {
  const give = (files) => {
    const all = [...files].sort((a, b) => a.name.localeCompare(b.name, undefined, { numeric: true }));
    if (all.length) onclip(all.length > 1 ? all : all[0]);
  };
  const input = element("input", { type: "file", multiple: true, accept: "video/*,image/*", onchange: () => give(input.files) });
  onDrop(target, give);
  return element("label", { class: "file" }, "choose a clip", input);
}

/** The clips of the program as buttons; `onload` gets the first of them once they are there. */
export function clipButtons(onclip, onload = () => {}) {
  const row = element("div", { class: "samples", role: "group", "aria-label": "sample clips" });
  const frames = (sample) => sample.frames.map(toBlob);
  const button = (sample) =>
    element("button", { type: "button", title: sample.name, onclick: () => onclip(frames(sample)) }, element("img", { src: sample.picture, alt: sample.name, width: 40, height: 40 }));
  attempt(() => api.samples("clips")).then((all = []) => {
    row.append(...all.map(button));
    if (all.length) onload(frames(all[0]));
  });
  return row;
}

/** The pictures of the program for a task as buttons, each given with its sample; `onload` gets the last of them, and all samples. */
export function sampleButtons(task, onpicture, onload = () => {}) {
  const row = element("div", { class: "samples", role: "group", "aria-label": "sample pictures" });
  const button = (sample) =>
    element("button", { type: "button", title: sample.name, onclick: () => onpicture(toBlob(sample.picture), sample) }, element("img", { src: sample.picture, alt: sample.name, width: 40, height: 40 }));
  attempt(() => api.samples(task)).then((all = []) => {
    row.append(...all.map(button));
    if (all.length) onload(toBlob(all.at(-1).picture), all.at(-1), all);
  });
  return row;
}

function toBlob(dataUrl) {
  const bytes = Uint8Array.from(atob(dataUrl.slice(dataUrl.indexOf(",") + 1)), (letter) => letter.charCodeAt(0));
  return new Blob([bytes], { type: "image/png" });
}
