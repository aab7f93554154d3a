// The views and what they share: the list of models, and one place for errors.

import * as api from "./api.js";
import { look } from "./look.js";
import { compare } from "./compare.js";
import { text } from "./text.js";
import { runs } from "./runs.js";
import { table } from "./models.js";

const problem = document.querySelector("#error");

/** Runs what may fail; the reason is shown until something works again. */
export async function attempt(work) {
  try {
    const result = await work();
    problem.hidden = true;
    return result;
  } catch (error) {
    if (error.name === "AbortError") return undefined;
    problem.textContent = error.message;
    problem.hidden = false;
    return undefined;
  }
}

const tabs = [...document.querySelectorAll("[role=tab]")];
const views = { look, compare, text, runs, models: table };
const begun = new Set();

function open(name) {
  for (const tab of tabs) {
    const chosen = tab.getAttribute("aria-controls") === name;
    tab.setAttribute("aria-selected", chosen);
    tab.tabIndex = chosen ? 0 : -1;
    document.querySelector(`#${tab.getAttribute("aria-controls")}`).hidden = !chosen;
  }
  if (!begun.has(name)) views[name](document.querySelector(`#${name}`), known);
  begun.add(name);
  history.replaceState(null, "", `#${name}`);
}

tabs.forEach((tab, index) => {
  tab.addEventListener("click", () => open(tab.getAttribute("aria-controls")));
  tab.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const next = tabs[(index + step + tabs.length) % tabs.length];
    next.focus();
    next.click();
  });
});

const known = (await attempt(api.models)) ?? { models: [] };
const asked = location.hash.slice(1);
open(asked in views ? asked : "look");
