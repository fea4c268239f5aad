// The login page: its form as JSON, like every change. Where to go then the broker says: always a page of its own.

const form = document.querySelector("#login");
const said = document.querySelector("#said");

async function logIn() {
  const options = {
    method: "POST",
    headers: { "Content-Type": "application/json", Accept: "application/json" },
    body: JSON.stringify(Object.fromEntries(new FormData(form))),
  };
  const response = await fetch("/login", options);
  const answer = await response.json().catch(() => ({}));
  if (!response.ok) throw new Error(answer.detail ?? `The broker answered ${response.status}.`);
  location.replace(answer.next);
}

form?.addEventListener("submit", async (event) => {
  event.preventDefault();
  const button = form.querySelector("button");
  button.disabled = true;
  said.textContent = "";
  try {
    await logIn();
  } catch (error) {
    said.textContent = error instanceof TypeError ? "The broker does not answer." : error.message;
    form.elements.password.select();
  } finally {
    button.disabled = false;
  }
});
