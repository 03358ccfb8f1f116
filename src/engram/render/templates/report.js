"use strict";
(() => {
  const dialog = document.getElementById("enlarged");
  const large = [document.getElementById("enlarged-image"), document.getElementById("enlarged-original")];
  const caption = document.getElementById("enlarged-caption");

  for (const thumb of document.querySelectorAll(".thumb")) {
    thumb.addEventListener("click", () => {
      const small = thumb.querySelectorAll("img");
      large.forEach((image, index) => {
        image.hidden = index >= small.length;
        if (!image.hidden) { image.src = small[index].src; image.alt = small[index].alt; }
      });
      caption.textContent = [...small].map((image) => image.alt).join(" | ") + " | " + thumb.querySelector("span").textContent;
      dialog.showModal();
    });
  }
  dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });

  const compare = (a, b) => {
    if (a === "" || b === "") return (a === "") - (b === "");  // unknown values come last in either direction
    const x = Number(a), y = Number(b);
    return Number.isNaN(x) || Number.isNaN(y) ? a.localeCompare(b) : x - y;
  };
  for (const table of document.querySelectorAll("table.sortable")) {
    const heads = [...table.tHead.rows[0].cells], body = table.tBodies[0];
    heads.forEach((head, column) => head.querySelector(".sort").addEventListener("click", () => {
      const way = head.getAttribute("aria-sort") === "descending" ? "ascending" : "descending";
      for (const other of heads) other.setAttribute("aria-sort", "none");
      head.setAttribute("aria-sort", way);
      const sign = way === "ascending" ? 1 : -1, value = (row) => row.cells[column].dataset.v;
      const known = [...body.rows].sort((a, b) => {
        const order = compare(value(a), value(b));
        return value(a) === "" || value(b) === "" ? order : sign * order;
      });
      body.append(...known);
    }));

    const filter = document.querySelector(`.filter[data-table="${table.id}"]`);
    const only = document.querySelector(`.only[data-table="${table.id}"]`);
    const count = document.querySelector(`.count[for="${table.id}"]`);
    const apply = () => {
      const wanted = filter.value.trim().toLowerCase(), column = only.value;
      let kept = 0;
      for (const row of body.rows) {
        const text = [...row.cells].some((cell) => cell.textContent.toLowerCase().includes(wanted));
        row.hidden = !(text && (column === "" || row.cells[Number(column)].dataset.v === "1"));
        kept += !row.hidden;
      }
      count.textContent = `${kept} of ${body.rows.length} rows`;
    };
    filter.addEventListener("input", apply);
    only.addEventListener("change", apply);
  }
})();
