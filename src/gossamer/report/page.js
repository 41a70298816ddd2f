// A click on a column's title sorts the table by it; another click turns the order round. Empty cells stay last.
for (const table of document.querySelectorAll("table.sorts")) {
  const body = table.tBodies[0];
  for (const button of table.querySelectorAll("th button")) {
    button.addEventListener("click", () => {
      const head = button.closest("th");
      const numbers = head.classList.contains("n");
      const before = head.getAttribute("aria-sort");
      const down = before ? before === "ascending" : numbers;
      for (const other of table.querySelectorAll("th")) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const key = (row) => row.cells[head.cellIndex].dataset.v;
      const compare = (a, b) => (numbers ? a - b : a.localeCompare(b, undefined, { numeric: true }));
      const rows = [...body.rows].sort((one, other) => {
        const a = key(one), b = key(other);
        if (a === "" || b === "") return (a === "") - (b === "");
        return down ? compare(b, a) : compare(a, b);
      });
      body.append(...rows);
    });
  }
}

// What is typed above a table leaves the rows that contain all of its words.
for (const field of document.querySelectorAll("input.filter")) {
  const rows = [...field.nextElementSibling.querySelectorAll("tbody tr")];
  field.addEventListener("input", () => {
    const words = field.value.toLowerCase().split(/\s+/);
    for (const row of rows) row.hidden = !words.every((word) => row.textContent.toLowerCase().includes(word));
  });
}

// Masks that are folded away are drawn when they are unfolded, in the colours of the page, and again when those change.
const draw = (canvas) => {
  const context = canvas.getContext("2d");
  context.clearRect(0, 0, canvas.width, canvas.height);
  context.fillStyle = getComputedStyle(canvas).getPropertyValue("--c0");
  canvas.dataset.shades.split(" ").forEach((row, y) => {
    let x = 0;
    for (const [, shade, run] of row.matchAll(/(\d)([a-z]?)/g)) {
      const length = run ? run.charCodeAt(0) - 96 : 1;
      context.globalAlpha = shade / 5;
      if (shade > 0) context.fillRect(x, y, length, 1);
      x += length;
    }
  });
};
for (const more of document.querySelectorAll("details.more")) {
  const all = () => more.open && more.querySelectorAll("canvas").forEach(draw);
  more.addEventListener("toggle", all);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", all);
}
