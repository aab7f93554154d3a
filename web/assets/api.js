// Requests to the server, and its responses as data; errors are the server's own words.

const TOKEN_KEY = "regard-token";

/** The server wants a token, or another one. */
export class TokenError extends Error {}

/** Keeps a token for this tab; it is sent with every request. */
export function setToken(token) {
  sessionStorage.setItem(TOKEN_KEY, token);
}

/** Takes a token from the address (`#token=..`), so that a link can bring it along, and removes it there. */
export function readTokenFromAddress() {
  const token = new URLSearchParams(location.hash.slice(1)).get("token");
  if (!token) return;
  setToken(token);
  history.replaceState(null, "", location.pathname + location.search);
}

async function request(path, options = {}) {
  const token = sessionStorage.getItem(TOKEN_KEY);
  const headers = { ...options.headers, ...(token && { authorization: `Bearer ${token}` }) };
  let response;
  try {
    response = await fetch(path, { ...options, headers });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("the server does not answer");
  }
  const text = await response.text();
  let body;
  try {
    body = JSON.parse(text);
  } catch {
    body = { error: text || response.statusText };
  }
  if (response.status === 401) throw new TokenError(token ? "the server does not know this token" : body.error);
  if (!response.ok) throw new Error(body.error || `the server answered ${response.status}`);
  return body;
}

const postJson = (path, body, signal) =>
  request(path, { method: "POST", body: JSON.stringify(body), signal, headers: { "content-type": "application/json" } });

export const models = () => request("v1/models");

const postPicture = (path, picture, query, signal) =>
  request(`${path}?${new URLSearchParams(query)}`, { method: "POST", body: picture, signal, headers: { "content-type": "application/octet-stream" } });

/** What a model sees in a picture; `query` is a row and a column from 0 to 1, or null for the class token. */
export const explain = (picture, model, query, signal) =>
  postPicture("v1/explain", picture, query ? { model, y: query[0], x: query[1] } : { model }, signal);

/** Objects with at least this score, the best first. */
export const detect = (picture, model, threshold, signal) => postPicture("v1/detect", picture, { model, threshold }, signal);

/** What a detection was read from; `index` counts them from 0, the best first. */
export const detectAttention = (picture, model, index, signal) => postPicture("v1/detect/attention", picture, { model, index }, signal);

/** Where a model looks in a clip: a file, or a list of pictures; `query` is a frame with `x` and `y` from 0 to 1, or null for the class token. */
export async function clipAttention(clip, model, query, signal) {
  const path = `v1/clips/attention?${new URLSearchParams({ model, ...query })}`;
  if (!Array.isArray(clip)) return request(path, { method: "POST", body: clip, signal, headers: { "content-type": "application/octet-stream" } });
  return postJson(path, { frames: await Promise.all(clip.map(base64)) }, signal);
}

/** The answer to a question about a picture, with the attention between words and regions. */
export const ask = async (picture, question, model, signal) =>
  postJson("v1/ask", { picture: await base64(picture), question, model, attention: true, top: 5 }, signal);

export const translate = (text, model) => postJson("v1/translate", { texts: [text], model, best: 3 });

/** The best translation, and where each layer and head looked. */
export const attend = (text, model) => postJson("v1/attend", { text, model });

/** How alike layers are; `pictures` are files, or null for those of the program. */
export async function similarity(models, pictures, signal) {
  const body = pictures ? { models, pictures: await Promise.all(pictures.map(base64)) } : { models };
  return postJson("v1/similarity", body, signal);
}

export const runs = async () => (await request("v1/runs")).runs;

export const curves = (name) => request(`v1/runs/${name.split("/").map(encodeURIComponent).join("/")}`);

/** Names and pictures that come with the program, for a task. */
export const samples = async (task) => (await request(`v1/samples?${new URLSearchParams({ task })}`)).samples;

const base64 = (file) =>
  new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result.slice(reader.result.indexOf(",") + 1));
    reader.onerror = () => reject(new Error(`${file.name} cannot be read`));
    reader.readAsDataURL(file);
  });
