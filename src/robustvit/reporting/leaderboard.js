const table = document.querySelector("table.board"), body = table.tBodies[0], form = document.querySelector("form.filters");
const rows = [...body.rows], heads = [...table.tHead.rows[0].cells];
const value = (row, column) => row.cells[column].dataset.value;
const sort = (column, descending) => {
  const compare = (one, other) => {
    const a = value(one, column), b = value(other, column);
    if (a === "" || b === "") return (a === "") - (b === "");  // what is missing comes last in both directions
    const order = isNaN(a) || isNaN(b) ? a.localeCompare(b, "en") : a - b;
    return descending ? -order : order;
  };
  body.append(...rows.sort(compare));
  heads.forEach((head, place) => place === column ? head.setAttribute("aria-sort", descending ? "descending" : "ascending") : head.removeAttribute("aria-sort"));
};
heads.forEach((head, column) => {
  const button = document.createElement("button");
  button.type = "button";
  button.append(...head.childNodes);
  head.append(button);
  const first = head.classList.contains("number") && head.textContent !== "Place" ? "descending" : "ascending";
  button.addEventListener("click", () => {
    const now = head.getAttribute("aria-sort");
    sort(column, (now ? (now === "descending" ? "ascending" : "descending") : first) === "descending");
  });
});
const order = form.elements.order;  // where the table is too narrow for its head
heads.forEach((head, column) => order.add(new Option(head.textContent, column)));
order.addEventListener("change", () => {
  if (order.value !== "") sort(Number(order.value), heads[order.value].classList.contains("number") && heads[order.value].textContent !== "Place");
});
const filter = () => {
  const wanted = Object.fromEntries(new FormData(form)), words = wanted.text.toLowerCase().split(/\s+/).filter(Boolean);
  let shown = 0;
  for (const row of rows) {
    const text = row.textContent.toLowerCase();
    const fits = ["data", "threat", "suite", "source"].every(key => !wanted[key] || row.dataset[key] === wanted[key]);
    row.hidden = !(fits && words.every(word => text.includes(word)));
    shown += !row.hidden;
  }
  form.querySelector("output").textContent = `${shown} of ${rows.length} shown`;
};
form.hidden = false;
form.addEventListener("input", filter);
form.addEventListener("submit", event => event.preventDefault());
filter();
