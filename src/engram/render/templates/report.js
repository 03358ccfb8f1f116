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

  // Paper shows what is folded away, and a link opens what its target is folded into.
  let folded = [];
  addEventListener("beforeprint", () => {
    folded = [...document.querySelectorAll("details:not([open])")];
    for (const one of folded) one.open = true;
  });
  addEventListener("afterprint", () => { for (const one of folded) one.open = false; });
  const reveal = () => {
    const target = location.hash.length > 1 && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    const around = target && target.closest("details");
    if (around && !around.open) { around.open = true; target.scrollIntoView(); }
  };
  addEventListener("hashchange", reveal);
  reveal();

  const PAGE = 25;
  const compare = (a, b) => {
    if (a === "" || b === "") return (a === "") - (b === "");  // unknown values come last in either direction
    const x = Number(a), y = Number(b);
    return Number.isNaN(x) || Number.isNaN(y) ? a.localeCompare(b) : x - y;
  };
  for (const table of document.querySelectorAll("table.sortable")) {
    const heads = [...table.tHead.rows[0].cells], body = table.tBodies[0];
    const filter = document.querySelector(`.filter[data-table="${table.id}"]`);
    const only = document.querySelector(`.only[data-table="${table.id}"]`);
    const count = document.querySelector(`.count[for="${table.id}"]`);
    const pager = document.querySelector(`.pager[data-table="${table.id}"]`);
    let start = 0;

    // Rows on other pages are hidden on screens only: paper has no buttons to turn to them.
    const turn = () => {
      const kept = [...body.rows].filter((row) => !row.hidden);
      start = Math.max(0, Math.min(start, PAGE * Math.floor((kept.length - 1) / PAGE)));
      if (pager === null) return;
      kept.forEach((row, index) => row.classList.toggle("elsewhere", index < start || index >= start + PAGE));
      const [previous, place, next] = pager.children, end = Math.min(start + PAGE, kept.length);
      place.textContent = kept.length ? `${start + 1} to ${end} of ${kept.length}` : "no rows";
      // Not disabled: a disabled button would lose the focus of whoever turns pages by keyboard.
      previous.setAttribute("aria-disabled", String(start === 0));
      next.setAttribute("aria-disabled", String(end >= kept.length));
    };
    if (pager !== null) {
      const [previous, , next] = pager.children;
      const by = (button, step) => button.addEventListener("click", () => {
        if (button.getAttribute("aria-disabled") === "true") return;
        start += step;
        turn();
      });
      by(previous, -PAGE);
      by(next, PAGE);
    }

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
      start = 0;
      turn();
    }));

    const apply = () => {
      const wanted = filter.value.trim().toLowerCase(), column = only.value;
      let kept = 0;
      for (const row of body.rows) {
        const text = [...row.cells].some((cell) => cell.textContent.toLowerCase().includes(wanted));
        row.hidden = !(text && (column === "" || row.cells[Number(column)].dataset.v === "1"));
        kept += !row.hidden;
      }
      count.textContent = `${kept} of ${body.rows.length} rows`;
      start = 0;
      turn();
    };
    filter.addEventListener("input", apply);
    only.addEventListener("change", apply);
    turn();
  }
})();
