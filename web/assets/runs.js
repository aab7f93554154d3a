// Training runs and their curves, updated while they run.

import * as api from "./api.js";
import { attempt } from "./app.js";
import { element, lines } from "./draw.js";

const REFRESH_SECONDS = 2;

const formatAge = (age) => (age < 60 ? `${age} s` : age < 3600 ? `${Math.floor(age / 60)} min` : age < 86400 ? `${Math.floor(age / 3600)} h` : `${Math.floor(age / 86400)} days`);

const scale = (unit, value) => (unit === "percent" ? 100 * value : value);

const format = ({ unit }, value) => (!Number.isFinite(value) ? "not measured" : unit === "percent" ? `${(100 * value).toFixed(2)} %` : value.toFixed(Math.abs(value) < 10 ? 4 : 2));

/** Runs of older versions do not say what they report: every number of an epoch that is not about time. */
function measuredMetrics(epochs) {
  const others = new Set(["epoch", "step", "seconds", "train_loss", "test_loss"]);
  const names = new Set(epochs.flatMap((epoch) => Object.keys(epoch)).filter((name) => !others.has(name)));
  return [...names].map((name) => ({ name, label: name, unit: "number" }));
}

export function runs(panel) {
  const select = element("select", { "aria-label": "run", onchange: () => show() });
  const status = element("p", { class: "hint", role: "status" });
  const charts = element("div", { class: "side" });
  const recipe = element("pre");
  const bar = element("div", { class: "bar" }, element("label", {}, "run", select));
  panel.append(bar, status, charts, element("details", {}, element("summary", {}, "recipe"), recipe));

  async function list() {
    const all = (await attempt(api.runs)) ?? [];
    bar.hidden = !all.length;
    if (!all.length) {
      status.textContent = "no runs are shown; `regard serve --runs FOLDER` shows those below a folder";
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

  async function show() {
    if (!select.value) return;
    const run = await attempt(() => api.curves(select.value));
    if (!run || run.name !== select.value) return;
    const metrics = run.task?.metrics ?? measuredMetrics(run.epochs);
    const primary = metrics.find(({ name }) => name === run.task?.primary);
    const best = run.epochs.find(({ epoch }) => epoch === run.best);
    const last = run.epochs.at(-1);
    status.textContent = [
      run.age < 30 ? "training" : `last written ${formatAge(run.age)} ago`,
      `${run.steps.at(-1)?.step ?? 0} steps`,
      `${last?.epoch ?? 0} epochs`,
      primary && best ? `best ${primary.label} ${format(primary, best[primary.name])} in epoch ${best.epoch}` : null,
      primary && run.test ? `on the test part ${format(primary, run.test[primary.name])}` : null,
    ].filter(Boolean).join(", ");
    const bySteps = (value) => run.steps.map((step) => [step.step, value(step) ?? NaN]);
    const byEpochs = ({ name, unit }) => run.epochs.map((epoch) => [epoch.step, scale(unit, epoch[name] ?? NaN)]);
    const loss = metrics.find(({ name }) => name === "loss");
    const parts = Object.keys(run.steps.at(-1)?.parts ?? {});
    charts.replaceChildren(...[
      lines("loss by step", [
        { name: "training", points: bySteps(({ loss }) => loss) },
        ...(loss ? [{ name: "validation", points: byEpochs(loss) }] : []),
        ...parts.map((name) => ({ name, points: bySteps(({ parts }) => parts?.[name]) })),
      ], primary === loss ? best : undefined),
      ...metrics.filter((metric) => metric !== loss).map((metric) =>
        lines(`${metric.label}${metric.unit === "percent" ? ", %" : ""}${metric === primary ? " (decides)" : ""}`, [{ name: "validation", points: byEpochs(metric) }], metric === primary ? best : undefined)),
      lines("learning rate by step", [{ name: "rate", points: bySteps(({ rate }) => rate) }]),
    ].filter(Boolean));
    recipe.textContent = run.recipe;
  }

  const refresh = async () => {
    if (!panel.hidden && !document.hidden) {
      await list();
      await show();
    }
    setTimeout(refresh, 1000 * REFRESH_SECONDS);
  };
  refresh();
}
