"use strict";
(() => {
  const PRINT_WIDTH = 1040; // with the style sheet's zoom, what fits between the margins of A4
  const root = document.documentElement;
  const payload = JSON.parse(document.getElementById("figures").textContent);
  const boxes = [...document.querySelectorAll(".figure")];
  const config = { displaylogo: false, responsive: true, modeBarButtonsToRemove: ["select2d", "lasso2d"] };
  const print = matchMedia("print");
  const color = (name) => getComputedStyle(root).getPropertyValue(name).trim();

  function template() {
    const text = color("--text"), grid = color("--grid"), rule = color("--rule");
    const axis = { gridcolor: grid, linecolor: rule, zerolinecolor: rule, tickcolor: rule, automargin: true };
    const clear = "rgba(0,0,0,0)";
    return { layout: {
      font: { color: text }, paper_bgcolor: clear, plot_bgcolor: clear, xaxis: axis, yaxis: axis,
      hoverlabel: { bgcolor: color("--page"), bordercolor: rule, font: { color: text } },
    } };
  }

  function chosen(box) {
    const entry = payload[box.dataset.figure];
    if (!entry.options) return entry;
    return entry.options[Number(document.getElementById("choose-" + box.dataset.figure).value)];
  }

  function draw(box) {
    const option = chosen(box);
    const figure = structuredClone(option.figure);
    const layout = { ...figure.layout, template: template(), autosize: true };
    if (root.classList.contains("printing")) Object.assign(layout, { width: PRINT_WIDTH, autosize: false });
    box.style.minHeight = layout.height + "px";
    const drawn = Plotly.react(box, figure.data, layout, config);
    describe(box.dataset.figure, option);
    return drawn;
  }

  function describe(name, option) {
    const note = document.getElementById("note-" + name);
    if (note) note.textContent = option.note || "";
    const label = document.getElementById("chosen-" + name);
    if (label) label.textContent = option.label || "";
    const holders = document.getElementById("holders-" + name);
    if (!holders) return;
    const rows = (option.holders || []).map((cells) => {
      const row = document.createElement("tr");
      row.append(...cells.map((text, index) => {
        const cell = document.createElement("td");
        if (index === 1) cell.className = "text";
        cell.textContent = text;
        return cell;
      }));
      return row;
    });
    holders.replaceChildren(...rows);
    holders.closest("table").hidden = !rows.length;
  }

  function drawAll() {
    return Promise.all(boxes.map(draw)).then(() => { root.dataset.drawn = "true"; });
  }

  function setPrinting(on) {
    if (root.classList.contains("printing") === on) return;
    root.classList.toggle("printing", on);
    drawAll();
  }

  addEventListener("beforeprint", () => setPrinting(true));
  addEventListener("afterprint", () => setPrinting(print.matches));
  print.addEventListener("change", () => setPrinting(print.matches));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
  for (const select of document.querySelectorAll("select")) {
    select.addEventListener("change", () => draw(document.getElementById("figure-" + select.dataset.for)));
  }
  root.classList.toggle("printing", print.matches);
  drawAll();
})();
