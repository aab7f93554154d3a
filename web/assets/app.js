// The tabs and what all views share: the list of models, errors, and the token.

import * as api from "./api.js";
import { views } from "./views.js";
import { element } from "./draw.js";

const error = document.querySelector("#error");
const tokenForm = document.querySelector("#token");

/** Runs what may fail; the reason is shown until something works again. */
export async function attempt(work) {
  try {
    const result = await work();
    error.hidden = true;
    return result;
  } catch (reason) {
    if (reason.name === "AbortError") return undefined;
    error.textContent = reason.message;
    error.hidden = false;
    if (reason instanceof api.TokenError) tokenForm.hidden = false;
    return undefined;
  }
}

tokenForm.addEventListener("submit", (event) => {
  event.preventDefault();
  api.setToken(tokenForm.elements.token.value.trim());
  location.reload();
});

const main = document.querySelector("main");
const tabs = views.map(({ name }) => element("button", { role: "tab", id: `tab-${name}`, "aria-controls": name, "aria-selected": false, tabindex: -1 }, name));
document.querySelector("[role=tablist]").append(...tabs);
main.append(...views.map(({ name }) => element("section", { id: name, role: "tabpanel", "aria-labelledby": `tab-${name}`, hidden: true })));
const opened = new Set();

function open(view) {
  views.forEach(({ name }, index) => {
    const selected = name === view.name;
    tabs[index].setAttribute("aria-selected", selected);
    tabs[index].tabIndex = selected ? 0 : -1;
    document.querySelector(`#${name}`).hidden = !selected;
  });
  if (!opened.has(view)) view.open(document.querySelector(`#${view.name}`), served.models.filter(({ task }) => !view.task || task === view.task));
  opened.add(view);
  history.replaceState(null, "", `#${view.name}`);
}

tabs.forEach((tab, index) => {
  tab.addEventListener("click", () => open(views[index]));
  tab.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const next = tabs[(index + step + tabs.length) % tabs.length];
    next.focus();
    next.click();
  });
});

api.readTokenFromAddress();
const served = await attempt(api.models);
// without the list there is only the error to show
if (served) open(views.find(({ name }) => name === location.hash.slice(1)) ?? views[0]);
