// What the server is asked, and its answers as data; errors are the server's own words.

async function answer(response) {
  const text = await response.text();
  let told;
  try {
    told = JSON.parse(text);
  } catch {
    told = { error: text || response.statusText };
  }
  if (!response.ok) throw new Error(told.error || `the server answered ${response.status}`);
  return told;
}

const reach = async (path, options) => {
  try {
    return await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("the server does not answer");
  }
};

export const models = async () => answer(await reach("v1/models"));

/** What a model sees in a picture; `query` is a row and a column from 0 to 1, or null for the class token. */
export async function explain(picture, model, query, signal) {
  const asked = new URLSearchParams(query ? { model, y: query[0], x: query[1] } : { model });
  const options = { method: "POST", body: picture, signal, headers: { "content-type": "application/octet-stream" } };
  return answer(await reach(`v1/explain?${asked}`, options));
}

const send = async (path, question, signal) =>
  answer(await reach(path, { method: "POST", body: JSON.stringify(question), signal, headers: { "content-type": "application/json" } }));

export const translate = (text, model) => send("v1/translate", { texts: [text], model, best: 3 });

/** The best translation, and where each layer and head looked. */
export const attend = (text, model) => send("v1/attend", { text, model });

/** How alike layers are; `pictures` are files, or null for those of the program. */
export async function similarity(models, pictures, signal) {
  const question = pictures ? { models, pictures: await Promise.all(pictures.map(base64)) } : { models };
  return send("v1/similarity", question, signal);
}

export const runs = async () => (await answer(await reach("v1/runs"))).runs;

export const curves = async (name) => answer(await reach(`v1/runs/${name.split("/").map(encodeURIComponent).join("/")}`));

/** Names and pictures that come with the program. */
export const samples = async () => (await answer(await reach("v1/samples"))).samples;

const base64 = (file) =>
  new Promise((done, failed) => {
    const reader = new FileReader();
    reader.onload = () => done(reader.result.slice(reader.result.indexOf(",") + 1));
    reader.onerror = () => failed(new Error(`${file.name} cannot be read`));
    reader.readAsDataURL(file);
  });
