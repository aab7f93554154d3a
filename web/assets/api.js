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

export async function translate(text, model) {
  const body = JSON.stringify({ texts: [text], model, best: 3 });
  return answer(await reach("v1/translate", { method: "POST", body, headers: { "content-type": "application/json" } }));
}
