// A visit to the page, step by step; any error in the browser's console fails.

import assert from "node:assert/strict";
import { appendFileSync } from "node:fs";
import { chromium } from "playwright-core";

const [address, closed, token] = process.argv.slice(2);
const browser = await chromium.launch({ executablePath: process.env.CHROMIUM, args: ["--no-sandbox", "--disable-gpu"] });
const page = await browser.newPage({ viewport: { width: 1100, height: 900 } });
const errors = [];
page.on("console", (message) => message.type() === "error" && errors.push(message.text()));
page.on("pageerror", (error) => errors.push(error.message));
page.setDefaultTimeout(30_000);

/** A BMP file of a slope from dark to light. */
function picture(side) {
  const row = Math.ceil((3 * side) / 4) * 4;
  const bytes = Buffer.alloc(54 + row * side);
  bytes.write("BM");
  for (const [offset, value] of [[2, bytes.length], [10, 54], [14, 40], [18, side], [22, side]]) bytes.writeUInt32LE(value, offset);
  bytes.writeUInt16LE(1, 26);
  bytes.writeUInt16LE(24, 28);
  for (let y = 0; y < side; y++) for (let x = 0; x < side; x++) bytes.set([4 * x, 4 * y, 128], 54 + y * row + 3 * x);
  return bytes;
}

const file = { name: "slope.bmp", mimeType: "image/bmp", buffer: picture(60) };
const screen = async (name) => process.env.SCREENS && page.screenshot({ path: `${process.env.SCREENS}/${name}.png`, fullPage: true });
const label = () => page.getAttribute("#look .stage canvas", "aria-label");

await page.goto(address);
assert.equal(await page.title(), "regard");
assert.ok(!(await page.isVisible("#token")), "a server without a token asks for none");

// something real is there before anything is given: a sample of clothes and the small models
await page.waitForSelector("#look .classes li");
await page.click("#look .samples button >> nth=9");
await page.selectOption("#look select[aria-label=model]", "fashion-vit");
await page.waitForFunction(() => document.querySelector("#look .classes li").textContent.includes("ankle boot"));
await page.click("#look .stage canvas", { position: { x: 200, y: 200 } });
await page.waitForFunction(() => document.querySelector("#look .stage canvas").getAttribute("aria-label").includes("row 4, column 4"));
await screen("look");

// look: upload, click, layers, heads, models
await page.selectOption("#look select[aria-label=model]", "vit");
await page.setInputFiles("#look input[type=file]", file);
await page.waitForSelector("#look .classes li");
assert.equal(await page.locator("#look .classes li").count(), 5);
assert.equal(await page.locator("#look .grid figure").count(), 4, "heads");
// a row of the lens for each layer, once the answer of this model is there
await page.waitForFunction(() => document.querySelectorAll("#look table tr").length === 5);
await page.click("#look .stage canvas", { position: { x: 20, y: 20 } });
await page.waitForFunction(() => document.querySelector("#look .stage canvas").getAttribute("aria-label").includes("row 1, column 1"));
await page.focus("#look .stage canvas");
await page.keyboard.press("ArrowRight");
await page.waitForFunction(() => document.querySelector("#look .stage canvas").getAttribute("aria-label").includes("row 1, column 2"));
await page.fill("#look input[type=range]", "0");
assert.match(await label(), /blocks\.0\.attn/);
await page.click("#look .grid figure button >> nth=1");
assert.equal(await page.getAttribute("#look .grid figure button >> nth=1", "aria-pressed"), "true");
await page.selectOption("#look select[aria-label=overlay]", "rollout");
assert.match(await label(), /rollout/);
await page.selectOption("#look select[aria-label=model]", "san");
await page.waitForFunction(() => document.querySelector("#look output").textContent.startsWith("stages."));
assert.match(await page.textContent("#look .grid figcaption >> nth=0"), /kernel/);
await page.selectOption("#look select[aria-label=model]", "resnet");
await page.waitForFunction(() => document.querySelector("#look .grid").textContent.includes("no attention"));
await page.selectOption("#look select[aria-label=overlay]", "cam");

// a bad upload says why, and what comes after works again
await page.setInputFiles("#look input[type=file]", { name: "bad.png", mimeType: "image/png", buffer: Buffer.from("no picture") });
await page.waitForSelector("#error:not([hidden])");
assert.match(await page.textContent("#error"), /not a JPEG/);
assert.match(errors.pop() ?? "", /422/, "the browser notes the refusal");
await page.setInputFiles("#look input[type=file]", file);
await page.waitForSelector("#error", { state: "hidden" });

// compare, by keyboard
await page.focus("#tab-look");
await page.keyboard.press("ArrowRight");
assert.equal(await page.getAttribute("#tab-compare", "aria-selected"), "true");
await page.setInputFiles("#compare input[type=file]", file);
await page.waitForFunction(() => document.querySelectorAll("#compare .side > div").length === 3);
for (const name of ["vit", "san", "resnet"]) await page.uncheck(`#compare input[value=${name}]`);
for (const name of ["vit", "san", "resnet"]) await page.check(`#compare input[value=fashion-${name}]`);
await page.click("#compare .samples button >> nth=8");
await page.waitForFunction(() => [...document.querySelectorAll("#compare .side > div")].filter((side) => side.textContent.includes("bag")).length === 3);
await page.selectOption("#compare select[aria-label=rows]", "fashion-vit");
await page.selectOption("#compare select[aria-label=columns]", "fashion-resnet");
await page.click("#compare .similarity button");
await page.waitForSelector("#compare .similarity svg");
assert.ok((await page.locator("#compare .similarity rect").count()) >= 20, "a cell for each pair of layers");
await screen("compare");

// detect: boxes, a slider that asks nothing, what a box was read from, by mouse and by keyboard
let detectRequests = 0;
page.on("request", (request) => { detectRequests += new URL(request.url()).pathname === "/v1/detect" ? 1 : 0; });
const boxes = page.locator("#detect .box:visible");
const detections = page.locator("#detect .detections li:visible");
const caption = (words) => page.waitForFunction((words) => document.querySelector("#detect .stage canvas").getAttribute("aria-label").includes(words), words);
await page.click("#tab-detect");
await page.waitForSelector("#detect .box:visible");
await page.click("#detect .samples button >> nth=0");
await page.waitForFunction(() => document.querySelectorAll("#detect .box:not([hidden])").length >= 2);
const usual = await boxes.count();
assert.equal(await detections.count(), usual, "a row for each box");
const asked = detectRequests;
await page.fill("#detect input[type=range]", "0.05");
const all = await boxes.count();
assert.ok(all > usual, `${all} boxes, ${usual} at a higher threshold`);
await page.fill("#detect input[type=range]", "0.95");
assert.ok((await boxes.count()) < usual, "a high threshold hides boxes");
await page.fill("#detect input[type=range]", "0.5");
assert.equal(await boxes.count(), usual);
assert.equal(detectRequests, asked, "the slider asks nothing");
const second = await detections.nth(1).locator("button").textContent();
await detections.nth(1).locator("button").press("Enter");
await caption("Grad-CAM of its score");
assert.equal((await page.textContent("#detect .stage + .hint")).split(":")[0].replace(" ", ""), second.replace(" ", ""), "the map is of the row that was chosen");
await page.keyboard.press("Escape");
await caption("picture with");
await boxes.first().locator("span").click();
await caption("Grad-CAM of its score");
assert.equal(await page.locator("#detect .detections button[aria-pressed=true]").count(), 1);
await screen("detect");
await page.setInputFiles("#detect input[type=file]", { name: "bad.png", mimeType: "image/png", buffer: Buffer.from("no picture") });
await page.waitForSelector("#error:not([hidden])");
assert.match(await page.textContent("#error"), /not a JPEG/);
assert.match(errors.pop() ?? "", /422/, "the browser notes the refusal");
assert.equal(await boxes.count(), usual, "what was there stays");
const transfer = await page.evaluateHandle((bytes) => {
  const transfer = new DataTransfer();
  transfer.items.add(new File([new Uint8Array(bytes)], "slope.bmp", { type: "image/bmp" }));
  return transfer;
}, [...file.buffer]);
await page.dispatchEvent("#detect .box:visible", "drop", { dataTransfer: transfer });
await page.waitForSelector("#error", { state: "hidden" });
await page.waitForFunction(() => !document.querySelector("#detect .detections button[aria-pressed=true]"));

// ask: an answer, words and regions that shade each other, by mouse and by keyboard, one head, and the transport plan
await page.click("#tab-ask");
await page.waitForSelector("#ask .classes li");
await page.click("#ask .samples button >> nth=0");
await page.waitForFunction(() => document.querySelector("#ask .question").value.startsWith("what colour is the"));
await page.waitForFunction(() => document.querySelector("#ask .word") && document.querySelectorAll("#ask .box").length >= 2);
const sharesOf = (nodes) => page.locator(nodes).evaluateAll((nodes) => nodes.map((node) => Number(node.style.getPropertyValue("--share"))));
const askCaption = (words) => page.waitForFunction((words) => document.querySelector("#ask .stage + .hint").textContent.includes(words), words);
await askCaption("darker words mattered more for");
assert.ok((await sharesOf("#ask .word")).some((share) => share > 0), "at rest words show what mattered");
await screen("ask");
const regions = await page.locator("#ask .box").count();
assert.equal(await page.locator("#ask .detections li").count(), regions, "a row for each region");
await page.hover("#ask .word >> nth=4");
await askCaption("looks at");
assert.equal(Math.max(...(await sharesOf("#ask .box"))), 1, "the region that a word looks at most");
assert.equal((await page.locator("#ask .detections .share").allTextContents()).filter((text) => text.endsWith("%")).length, regions);
await page.click("#ask .word >> nth=4");
await page.hover("#ask h2 >> nth=0");
assert.equal(await page.getAttribute("#ask .word >> nth=4", "aria-pressed"), "true", "a click keeps it");
await page.keyboard.press("Escape");
await page.focus("#ask .detections button >> nth=1");
await askCaption("which words look at region 2");
assert.equal(Math.max(...(await sharesOf("#ask .word"))), 1);
await page.keyboard.press("Enter");
assert.equal(await page.getAttribute("#ask .box >> nth=1", "aria-pressed") === "true" || (await page.locator("#ask .box[aria-pressed=true]").count()) === 1, true);
await page.selectOption("#ask select[aria-label='who looks at whom']", "regions-to-words");
await askCaption("what region 2 looks at");
await screen("ask-region");
await page.selectOption("#ask select[aria-label=layer]", { index: 2 });
await page.click("#ask .grid button >> nth=1");
assert.match(await page.textContent("#ask .wide svg text >> nth=0"), /CLS/);
assert.match(await page.locator("#ask h2").last().textContent(), /encoder\.layer\.1.*head 2/);
await page.selectOption("#ask select[aria-label='who looks at whom']", "plan");
assert.match(await page.locator("#ask h2").last().textContent(), /transport plan.*not trained to align/);
assert.equal(await page.locator("#ask .grid figure").count(), 0, "a plan has no heads");
await page.fill("#ask .question", "how many jabberwock things are there ?");
await page.press("#ask .question", "Enter");
await page.waitForFunction(() => document.querySelector("#ask").textContent.includes("does not know: jabberwock"));
await page.fill("#ask .question", " ");
await page.click("#ask form button");
await page.waitForSelector("#error:not([hidden])");
assert.match(await page.textContent("#error"), /`question`: is empty/);
assert.match(errors.pop() ?? "", /422/, "the browser notes the refusal");
await page.fill("#ask .question", "what colour is the bag ?");
await page.setInputFiles("#ask input[type=file]", file);
await page.waitForSelector("#error", { state: "hidden" });

// clips: a film strip, where the class token looks, a patch that is asked what it looks at in all frames, and playing
await page.click("#tab-clips");
await page.waitForFunction(() => document.querySelectorAll("#clips .strip button").length === 8);
const clipCaption = (words) => page.waitForFunction((words) => document.querySelector("#clips .hint").textContent.includes(words), words);
await clipCaption("the class token looks");
await page.focus("#clips .strip button >> nth=3");
await page.keyboard.press("Enter");
assert.equal(await page.inputValue("#clips input[type=range]"), "3");
await page.locator("#clips .stage canvas").click({ position: { x: 30, y: 30 } });
await clipCaption("of frame 3 looks");
assert.match(await page.textContent("#clips"), /most of it: frame/);
const layersOfClip = await page.locator("#clips select[aria-label=layer] option").allTextContents();
assert.ok(layersOfClip.some((name) => name.includes("temporal_attn")), layersOfClip.join());
await page.selectOption("#clips select[aria-label=head]", { index: 1 });
await page.click("#clips .bar button:text('play')");
await page.waitForFunction(() => document.querySelector("#clips input[type=range]").value !== "3");
await page.click("#clips .bar button:text('play')");
await page.click("#clips .bar button:text('class token')");
await clipCaption("the class token looks");
await page.setInputFiles("#clips input[type=file]", { name: "bad.mp4", mimeType: "video/mp4", buffer: Buffer.from("no clip") });
await page.waitForSelector("#error:not([hidden])");
assert.match(errors.pop() ?? "", /422/, "the browser notes the refusal");
await page.click("#clips .samples button >> nth=1");
await page.waitForSelector("#error", { state: "hidden" });
await page.selectOption("#clips select[aria-label=model]", "motions");
await clipCaption("the middle of the clip looks");
await screen("clips");

// text: translations, every head, one by words, the alignment
await page.click("#tab-text");
await page.click("#text form button");
await page.waitForSelector("#text svg");
assert.match(await page.textContent("#text table"), /eating/);
assert.ok((await page.locator("#text .grid figure").count()) >= 8, "heads");
await page.click("#text .grid button >> nth=1");
assert.equal(await page.getAttribute("#text .grid button >> nth=1", "aria-pressed"), "true");
await page.hover("#text button.word >> nth=1");
assert.equal(await page.getAttribute("#text button.word >> nth=1", "aria-pressed"), "true");
const shares = await page.locator("#text span.word").evaluateAll((words) => words.map((word) => Number(word.style.getPropertyValue("--share"))));
assert.ok(Math.abs(shares.reduce((sum, share) => sum + share) - 1) < 1e-3, "what a word looks at sums to one");
await page.selectOption("#text select[aria-label='kind of attention']", "encoder");
await screen("text");

// runs: curves, which grow while something is written
await page.click("#tab-runs");
await page.selectOption("#runs select", "vit-nano");
await page.waitForSelector("#runs polyline");
const steps = async () => Number(/(\d+) steps/.exec(await page.textContent("#runs [role=status]"))[1]);
const before = await steps();
appendFileSync(`${process.env.RUNS}/vit-nano/metrics.jsonl`, JSON.stringify({ kind: "step", step: before + 1, epoch: 1, loss: 1, rate: 0.1, gradient_norm: 1, items_per_second: 1 }) + "\n");
await page.waitForFunction((now) => document.querySelector("#runs [role=status]").textContent.includes(`${now} steps`), before + 1);
assert.match(await page.textContent("#runs"), /\(decides\)/);
assert.ok((await page.locator("#runs line.best").count()) === 1, "the best epoch is marked in the chart of the metric that decides");
await screen("runs");

await page.click("#tab-models");
assert.equal(await page.locator("#models tbody tr").count(), 12);
await screen("models");

// on a phone nothing is wider than the screen
await page.setViewportSize({ width: 390, height: 800 });
for (const view of ["look", "compare", "detect", "ask", "clips", "text", "runs", "models"]) {
  await page.click(`#tab-${view}`);
  const width = await page.evaluate(() => document.documentElement.scrollWidth);
  assert.ok(width <= 390, `${view} is ${width} wide`);
}
await page.click("#tab-look");
await page.emulateMedia({ colorScheme: "dark" });
await screen("phone");
await page.click("#tab-ask");
await screen("ask-phone");
await page.setViewportSize({ width: 1100, height: 900 });
await screen("ask-dark");
await page.setViewportSize({ width: 390, height: 800 });

assert.deepEqual(errors, []);

// a server with a token asks for it, says when it is wrong, and a link can bring it along
await page.setViewportSize({ width: 1100, height: 900 });
await page.goto(closed);
await page.waitForSelector("#token:not([hidden])");
assert.match(await page.textContent("#error"), /token is needed/);
await page.fill("#token input", "wrong");
await page.click("#token button");
await page.waitForFunction(() => document.querySelector("#error").textContent.includes("does not know this token"));
await screen("token");
await page.fill("#token input", token);
await page.click("#token button");
await page.waitForSelector("#look .classes li");
await page.reload();
await page.waitForSelector("#look .classes li");
// detect, with a token: an untrained DETR, whose boxes have heads
await page.click("#tab-detect");
await page.selectOption("#detect select[aria-label=model]", "detr-nano");
await page.fill("#detect input[type=range]", "0.05");
await page.waitForFunction(() => document.querySelectorAll("#detect .box:not([hidden])").length === 16);
await page.locator("#detect .detections li").last().locator("button").click();
await caption("cross-attention of its query in transformer.decoder");
assert.equal(await page.locator("#detect .grid figure").count(), 4, "heads");
await page.focus("#detect .grid figure button >> nth=2");
await page.keyboard.press("Enter");
await caption("head 3");
// the keyboard stays where it was
await page.keyboard.press("Enter");
await caption("mean of 4 heads");
const linked = await browser.newPage();
await linked.goto(`${closed}/#token=${token}`);
await linked.waitForSelector("#look .classes li");
assert.ok(!linked.url().includes(token), "the token does not stay in the address");
assert.ok(errors.every((text) => text.includes("401")), errors.join());
await browser.close();
console.log("the page works in the browser");
