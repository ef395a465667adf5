for (const button of document.querySelectorAll("button.copy")) {
  const text = button.parentElement.querySelector("pre");
  button.hidden = false;
  button.addEventListener("click", async () => {
    try { await navigator.clipboard.writeText(text.textContent); button.textContent = "Copied"; }
    catch {
      getSelection().selectAllChildren(text);
      button.textContent = document.execCommand("copy") ? "Copied" : "Selected";
    }
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  });
}
const reveal = () => {
  const target = document.getElementById(location.hash.slice(1));
  const details = target?.closest("details");
  if (details && !details.open) { details.open = true; target.scrollIntoView(); }
};
addEventListener("hashchange", reveal);
reveal();
let closed = [];
addEventListener("beforeprint", () => {
  closed = [...document.querySelectorAll("#settings details:not([open])")];
  for (const details of closed) details.open = true;
});
addEventListener("afterprint", () => { for (const details of closed) details.open = false; });
