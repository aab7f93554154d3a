// Training runs and their curves, which grow while a training goes on.

import * as api from "./api.js";
import { attempt } from "./app.js";
import { element, lines } from "./draw.js";

/** Seconds between two looks. */
const EVERY = 2;

const since = (age) => (age < 60 ? `${age} s` : age < 3600 ? `${Math.floor(age / 60)} min` : age < 86400 ? `${Math.floor(age / 3600)} h` : `${Math.floor(age / 86400)} days`);

export function runs(panel) {
  const select = element("select", { "aria-label": "run", onchange: () => follow() });
  const told = element("p", { class: "hint", role: "status" });
  const charts = element("div", { class: "side" });
  const recipe = element("pre");
  const bar = element("div", { class: "bar" }, element("label", {}, "run", select));
  panel.append(bar, told, charts, element("details", {}, element("summary", {}, "recipe"), recipe));

  async function list() {
    const all = (await attempt(api.runs)) ?? [];
    bar.hidden = !all.length;
    if (!all.length) {
      told.textContent = "no runs are shown; `regard serve --runs FOLDER` shows those below a folder";
      return;
    }
    const chosen = select.value;
    const names = all.map((run) => run.name).toSorted();
    if (names.join() !== [...select.options].map((option) => option.value).join()) {
      select.replaceChildren(...names.map((name) => element("option", { value: name }, name)));
      // the latest one first
      select.value = names.includes(chosen) ? chosen : all[0].name;
    }
  }

  async function follow() {
    if (!select.value) return;
    const run = await attempt(() => api.curves(select.value));
    if (!run || run.name !== select.value) return;
    const last = run.epochs.at(-1);
    const words = run.age < 30 ? "training" : `last written ${since(run.age)} ago`;
    told.textContent = [words, `${run.steps.at(-1)?.step ?? 0} steps`, `${last?.epoch ?? 0} epochs`, last?.top1 != null ? `${(100 * last.top1).toFixed(2)} % right` : null, last?.bleu != null ? `BLEU ${last.bleu.toFixed(2)}` : null].filter(Boolean).join(", ");
    const by = (name) => run.epochs.map((epoch) => [epoch.step, epoch[name] ?? NaN]);
    charts.replaceChildren(...[
      lines("loss by step", [{ name: "training", points: run.steps.map(({ step, loss }) => [step, loss]) }, { name: "test", points: by("test_loss") }]),
      lines("right answers by step", [{ name: "test", points: by("top1") }]),
      lines("BLEU by step", [{ name: "test", points: by("bleu") }]),
      lines("learning rate by step", [{ name: "rate", points: run.steps.map(({ step, rate }) => [step, rate]) }]),
    ].filter(Boolean));
    recipe.textContent = run.recipe;
  }

  const again = async () => {
    if (!panel.hidden && !document.hidden) {
      await list();
      await follow();
    }
    setTimeout(again, 1000 * EVERY);
  };
  again();
}
