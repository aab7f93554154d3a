// What a visitor does, and what has to be there then; any error in the browser's console fails.

import assert from "node:assert/strict";
import { chromium } from "playwright-core";

const address = process.argv[2];
const browser = await chromium.launch({ executablePath: process.env.CHROMIUM, args: ["--no-sandbox", "--disable-gpu"] });
const page = await browser.newPage({ viewport: { width: 1100, height: 900 } });
const complaints = [];
page.on("console", (message) => message.type() === "error" && complaints.push(message.text()));
page.on("pageerror", (error) => complaints.push(error.message));
page.setDefaultTimeout(30_000);

/** A BMP file of a slope from dark to light. */
function picture(side) {
  const row = Math.ceil((3 * side) / 4) * 4;
  const bytes = Buffer.alloc(54 + row * side);
  bytes.write("BM");
  for (const [place, value] of [[2, bytes.length], [10, 54], [14, 40], [18, side], [22, side]]) bytes.writeUInt32LE(value, place);
  bytes.writeUInt16LE(1, 26);
  bytes.writeUInt16LE(24, 28);
  for (let y = 0; y < side; y++) for (let x = 0; x < side; x++) bytes.set([4 * x, 4 * y, 128], 54 + y * row + 3 * x);
  return bytes;
}

const file = { name: "slope.bmp", mimeType: "image/bmp", buffer: picture(60) };
const screen = async (name) => process.env.SCREENS && page.screenshot({ path: `${process.env.SCREENS}/${name}.png` });
const label = () => page.getAttribute("#look .stage canvas", "aria-label");

await page.goto(address);
assert.equal(await page.title(), "regard");

// look: upload, click, layers, heads, models
await page.selectOption("#look select[aria-label=model]", "vit");
await page.setInputFiles("#look input[type=file]", file);
await page.waitForSelector("#look .classes li");
assert.equal(await page.locator("#look .classes li").count(), 5);
assert.equal(await page.locator("#look .grid figure").count(), 4, "heads");
assert.ok((await page.locator("#look table tr").count()) === 5, "a row of the lens for each layer");
await page.click("#look .stage canvas", { position: { x: 20, y: 20 } });
await page.waitForFunction(() => document.querySelector("#look .stage canvas").getAttribute("aria-label").includes("row 1, column 1"));
await page.focus("#look .stage canvas");
await page.keyboard.press("ArrowRight");
await page.waitForFunction(() => document.querySelector("#look .stage canvas").getAttribute("aria-label").includes("row 1, column 2"));
await page.fill("#look input[type=range]", "0");
assert.match(await label(), /blocks\.0\.attn/);
await page.click("#look .grid figure button >> nth=1");
assert.equal(await page.getAttribute("#look .grid figure button >> nth=1", "aria-pressed"), "true");
await page.selectOption("#look select[aria-label='what is shown']", "rollout");
assert.match(await label(), /rollout/);
await screen("look");
await page.selectOption("#look select[aria-label=model]", "san");
await page.waitForFunction(() => document.querySelector("#look output").textContent.startsWith("stages."));
assert.match(await page.textContent("#look .grid figcaption >> nth=0"), /kernel/);
await page.selectOption("#look select[aria-label=model]", "resnet");
await page.waitForFunction(() => document.querySelector("#look .grid").textContent.includes("no attention"));
await page.selectOption("#look select[aria-label='what is shown']", "cam");

// a bad upload says why, and what comes after works again
await page.setInputFiles("#look input[type=file]", { name: "bad.png", mimeType: "image/png", buffer: Buffer.from("no picture") });
await page.waitForSelector("#error:not([hidden])");
assert.match(await page.textContent("#error"), /not a JPEG/);
assert.match(complaints.pop() ?? "", /422/, "the browser notes the refusal");
await page.setInputFiles("#look input[type=file]", file);
await page.waitForSelector("#error", { state: "hidden" });

// compare, by keyboard
await page.focus("#tab-look");
await page.keyboard.press("ArrowRight");
assert.equal(await page.getAttribute("#tab-compare", "aria-selected"), "true");
await page.setInputFiles("#compare input[type=file]", file);
await page.waitForFunction(() => document.querySelectorAll("#compare .side > div").length === 3);
await screen("compare");

await page.click("#tab-text");
assert.match(await page.textContent("#text"), /no text model/);
await page.click("#tab-models");
assert.equal(await page.locator("#models tbody tr").count(), 3);
await screen("models");

// on a phone nothing is wider than the screen
await page.setViewportSize({ width: 390, height: 800 });
for (const view of ["look", "compare", "models"]) {
  await page.click(`#tab-${view}`);
  const width = await page.evaluate(() => document.documentElement.scrollWidth);
  assert.ok(width <= 390, `${view} is ${width} wide`);
}

assert.deepEqual(complaints, []);
await browser.close();
console.log("the page works in the browser");
