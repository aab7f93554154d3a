// Every view: its tab, the task whose models it shows (none shows them all), and how it is opened.

import { look } from "./look.js";
import { compare } from "./compare.js";
import { detect } from "./detect.js";
import { ask } from "./ask.js";
import { clips } from "./clips.js";
import { text } from "./text.js";
import { runs } from "./runs.js";
import { table } from "./models.js";

export const views = [
  { name: "look", task: "classify", open: look },
  { name: "compare", task: "classify", open: compare },
  { name: "detect", task: "detect", open: detect },
  { name: "ask", task: "answer", open: ask },
  { name: "clips", task: "clips", open: clips },
  { name: "text", task: "translate", open: text },
  { name: "runs", open: runs },
  { name: "models", open: table },
];
