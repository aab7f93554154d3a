// The least that is useful: which models there are, and what one of them says of a picture.

const at = (id) => document.getElementById(id);

async function ask(path, options) {
  const response = await fetch(path, options);
  const answer = await response.json();
  if (!response.ok) throw new Error(answer.error);
  return answer;
}

async function tell(work) {
  try {
    at("state").textContent = "";
    await work();
  } catch (error) {
    at("state").textContent = error.message;
  }
}

tell(async () => {
  const { models } = await ask("/v1/models");
  for (const { name, task } of models) {
    if (task === "classify") at("model").append(new Option(name));
  }
});

at("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  tell(async () => {
    at("answers").replaceChildren();
    const query = new URLSearchParams({ model: at("model").value });
    const { answers } = await ask(`/v1/classify?${query}`, { method: "POST", body: at("picture").files[0] });
    for (const { label, probability } of answers) {
      const line = document.createElement("li");
      line.textContent = `${label}, ${(100 * probability).toFixed(1)} %`;
      at("answers").append(line);
    }
  });
});
