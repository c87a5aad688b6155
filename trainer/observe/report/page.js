// Draws the plots of a page (plot.h): hover, curves on and off, linear and logarithmic axes, curves over steps, tokens
// (or samples) or time.
"use strict";
(() => {
  const SIZE = 1000;  // In the SVG's own coordinates, which are stretched to the area.

  function label(v) {
    const a = Math.abs(v);
    if (a === 0) return "0";
    if (a >= 1e15 || a < 1e-3) {
      const e = Math.floor(Math.log10(a) + 1e-9);
      return Number((v / 10 ** e).toPrecision(3)) + "e" + e;
    }
    if (a >= 9999.5) {
      for (const [unit, scale] of [["T", 1e12], ["G", 1e9], ["M", 1e6], ["k", 1e3]]) {
        if (a >= scale * 0.99995) return Number((v / scale).toPrecision(4)) + unit;
      }
    }
    return String(Number(v.toPrecision(4)));
  }
  const exact = (v) => (Math.abs(v) >= 1e-3 && Math.abs(v) < 1e6) || v === 0
    ? String(Number(v.toPrecision(5))) : label(v);

  function ticks(low, high, count) {
    const rough = (high - low) / count, decade = 10 ** Math.floor(Math.log10(rough));
    const step = decade * ([1, 2, 5].find((n) => n * decade >= rough * (1 - 1e-9)) || 10);
    const out = [];
    for (let i = Math.ceil(low / step - 1e-9); i * step <= high + 1e-9 * step && out.length < 100; ++i) {
      out.push(i * step);
    }
    return out;
  }
  function logTicks(low, high, count) {
    const decades = Math.log10(high) - Math.log10(low);
    if (decades < 0.7) return ticks(low, high, count);
    const out = [], stride = Math.max(1, Math.ceil(decades / count));
    for (let e = Math.floor(Math.log10(low)); e <= Math.ceil(Math.log10(high)); e += stride) {
      for (const n of [1, 2, 5]) {
        const v = n * 10 ** e;
        if ((n === 1 || decades <= 2.5) && v >= low && v <= high) out.push(v);
      }
    }
    return out;
  }

  const hasValues = (c) => c.style !== "marks" && c.style !== "ticks";

  function axisOf(curves, log, fromZero) {
    let low = Infinity, high = -Infinity;
    for (const c of curves) {
      if (!hasValues(c)) continue;
      for (const y of c.y) {
        if (log && !(y > 0)) continue;
        if (y < low) low = y;
        if (y > high) high = y;
      }
    }
    if (!(low <= high)) return {low: 0, high: 1, log: false};
    if (log) {
      const pad = Math.exp(0.04 * (Math.log(high) - Math.log(low))) * 1.001;
      return {low: Math.max(low / pad, 1e-307), high: Math.min(high * pad, 1e307), log: true};
    }
    if (fromZero && low > 0 && low < 0.4 * high) low = 0;
    let pad = 0.04 * (high - low);
    if (high - low < 5e-3 * Math.abs(high)) pad = 0.02 * Math.abs(high);
    if (pad === 0) pad = 1;
    return {low: low === 0 ? 0 : low - pad, high: high + pad, log: false};
  }
  const at = (axis, y) => axis.log
    ? (y > 0 ? (Math.log(y) - Math.log(axis.low)) / (Math.log(axis.high) - Math.log(axis.low)) : NaN)
    : (y - axis.low) / (axis.high - axis.low);

  // Whether the axis begins as a logarithmic one: a linear one would squeeze most values into its lowest twentieth.
  function beginsLogarithmic(data) {
    const values = data.curves.filter(hasValues).flatMap((c) => c.y).sort((a, b) => a - b);
    return data.may_be_log && values.length >= 3 && values[0] > 0 &&
      values.at(-1) > 20 * values[Math.floor(values.length * 3 / 4)];
  }

  const {x: counted, plots: all, runs, targets} = JSON.parse(document.getElementById("data").textContent);
  // Where steps lie: `table` has what a run had at some of them, and nothing at step 0.
  function place(table, step) {
    const {x, y} = table;
    if (x.length === 0) return NaN;
    let i = 0, last = x.length - 1;
    while (i < last) {
      const middle = (i + last) >> 1;
      if (x[middle] < step) i = middle + 1; else last = middle;
    }
    const x0 = i > 0 ? x[i - 1] : 0, y0 = i > 0 ? y[i - 1] : 0;
    const share = x[i] > x0 ? Math.min(1, (step - x0) / (x[i] - x0)) : 1;
    return y0 + share * (y[i] - y0);
  }
  const over = {axis: "step", unit: "", words: "Over steps."};
  function choose(axis) {
    const most = axis === "step" ? 0 : Math.max(...runs.map((r) => r[axis].y.at(-1) ?? 0));
    const [scale, unit] = axis !== "time" ? [1, targets]
      : most > 7200 ? [3600, "hours"] : most > 120 ? [60, "minutes"] : [1, "seconds"];
    Object.assign(over, {axis, unit, max: most > 0 ? most / scale : 1,
      words: axis === "step" ? "Over steps." : axis === "tokens" ? "Over " + targets + "."
        : "Over the time that is recorded, in " + unit + "."});
    for (const {curves} of all) {
      for (const c of curves) {
        c.at = axis === "step" ? c.x : c.x.map((step) => place(runs[c.run][axis], step) / scale);
      }
    }
  }
  const end = (plot) => over.axis === "step" ? plot.data.max : over.max;

  function drawTicks(box, values, side, place) {
    box.textContent = "";
    for (const tick of values) add(box, "span", "", label(tick)).style[side] = 100 * place(tick) + "%";
  }
  function draw(plot) {
    const {data, hidden, log} = plot;
    const axis = axisOf(data.curves.filter((_, i) => !hidden.has(i)), log, data.from_zero);
    const left = (x) => (SIZE * x / end(plot)).toFixed(1), top = (y) => (SIZE * (1 - at(axis, y))).toFixed(1);
    const rows = (axis.log ? logTicks : ticks)(axis.low, axis.high, 5);
    drawTicks(plot.ys, rows, "bottom", (y) => at(axis, y));
    drawTicks(plot.xs, ticks(0, end(plot), 4), "left", (x) => x / end(plot));
    plot.svg.querySelector(".grid").setAttribute("d", rows.map((y) => `M0 ${top(y)}H${SIZE}`).join(""));
    data.curves.forEach((c, i) => {
      let line = "", dots = "", open = false;
      c.at.forEach((x, k) => {
        if (!Number.isFinite(x) || (hasValues(c) && !Number.isFinite(at(axis, c.y[k])))) { open = false; return; }
        const point = hasValues(c) ? `${left(x)} ${top(c.y[k])}` : `${left(x)} ${SIZE}`;
        line += (open ? "L" : "M") + point + (hasValues(c) ? "" : c.style === "marks" ? "V0" : "V955");
        dots += `M${point}h0`;
        open = hasValues(c);
      });
      const g = plot.svg.children[i + 1];  // Behind the grid.
      g.style.display = hidden.has(i) ? "none" : "";
      g.querySelector(".stroke").setAttribute("d", line);
      for (const round of [".dot", ".hole"]) g.querySelector(round)?.setAttribute("d", dots);
    });
  }

  function nearest(xs, x) {
    let low = 0, high = xs.length - 1;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (xs[middle] < x) low = middle + 1; else high = middle;
    }
    return low > 0 && x - xs[low - 1] < xs[low] - x ? low - 1 : low;
  }

  function hover(plot) {
    const area = plot.area;
    const cursor = add(area, "div", "cursor"), tip = add(cursor, "div", "tip");
    cursor.hidden = true;
    const show = (event) => {
      const box = area.getBoundingClientRect();
      const share = Math.min(1, Math.max(0, (event.clientX - box.left) / box.width));
      const shown = plot.data.curves.map((c, i) => ({c, i}))
        .filter(({c, i}) => !plot.hidden.has(i) && hasValues(c) && Number.isFinite(c.at[0]))
        .map(({c}) => ({c, k: nearest(c.at, share * end(plot))}));
      if (shown.length === 0) { cursor.hidden = true; return; }
      const away = ({c, k}) => Math.abs(c.at[k] - share * end(plot));
      const best = shown.reduce((a, b) => away(b) < away(a) ? b : a);
      const step = best.c.x[best.k], here = best.c.at[best.k];
      tip.textContent = counted + " " + step + (over.axis === "step" ? "" : ", " + exact(here) + " " + over.unit);
      for (const {c, k} of shown) {
        const row = add(tip, "div", c.colour), mark = add(row, "i", "swatch");
        if (c.style === "faint") mark.style.opacity = .45;
        row.append(c.name + (c.x[k] === step ? "" : ` (${counted} ${c.x[k]})`));
        add(row, "b", "", exact(c.y[k]));
      }
      cursor.hidden = false;
      cursor.style.left = 100 * here / end(plot) + "%";
      // Right of the cursor, else left of it, else as far left as the area goes.
      const x = box.width * here / end(plot), width = tip.offsetWidth;
      const left = x + 8 + width <= box.width ? x + 8 : Math.max(0, x - 8 - width);
      tip.style.left = left - x + "px";
    };
    area.addEventListener("pointermove", show);
    area.addEventListener("pointerdown", show);
    area.addEventListener("pointerleave", () => { cursor.hidden = true; });
  }

  function add(parent, tag, className, text = "") {
    const element = document.createElement(tag);
    element.className = className;
    element.textContent = text;
    parent.append(element);
    return element;
  }
  function addButton(parent, className, text, pressed) {
    const button = add(parent, "button", className, text);
    button.type = "button";
    button.setAttribute("aria-pressed", pressed);
    return button;
  }

  function build(data) {
    const figure = add(document.getElementById("plots"), "figure", "plot");
    figure.id = data.id;
    const plot = {data, hidden: new Set(), log: beginsLogarithmic(data)};
    const caption = add(figure, "figcaption", "");
    add(caption, "b", "", data.title);
    add(caption, "span", "unit", data.unit);
    if (data.may_be_log) {
      const button = addButton(caption, "log", "log", plot.log);
      button.addEventListener("click", () => {
        plot.log = !plot.log;
        button.setAttribute("aria-pressed", plot.log);
        draw(plot);
      });
    }
    const legend = add(figure, "div", "legend"), frame = add(figure, "div", "frame");
    plot.ys = add(frame, "div", "ys");
    plot.area = add(frame, "div", "area");
    plot.xs = add(frame, "div", "xs");
    // Round caps make a dot of a line without length, whatever the stretch. Classes are words of plot.cc.
    const isDotted = (c) => c.style === "dots" || c.style === "hollow" || (hasValues(c) && c.x.length === 1);
    plot.area.innerHTML = `<svg viewBox="0 0 ${SIZE} ${SIZE}" preserveAspectRatio="none" role="img"><path class="grid"/>`
      + data.curves.map((c) => `<g class="${c.colour} ${c.style}"><path class="stroke"/>` +
        (isDotted(c) ? '<path class="dot"/>' : "") + (c.style === "hollow" ? '<path class="hole"/></g>' : "</g>"))
        .join("") + "</svg>";
    plot.svg = plot.area.firstChild;
    plot.svg.setAttribute("aria-label", data.title);
    data.curves.forEach((c, i) => {
      const entry = addButton(legend, c.colour, "", true);
      add(entry, "i", c.style);
      entry.append(c.name);
      entry.addEventListener("click", () => {
        if (!plot.hidden.delete(i)) plot.hidden.add(i);
        entry.setAttribute("aria-pressed", !plot.hidden.has(i));
        draw(plot);
      });
    });
    hover(plot);
    return plot;
  }

  function drawAll(chosen) {
    choose(chosen);
    plots.forEach(draw);
  }
  const plots = all.map(build);
  drawAll("step");
  const axis = document.getElementById("axis");
  if (axis) axis.hidden = false;
  for (const button of axis?.querySelectorAll("button") ?? []) {
    const chosen = button.dataset.axis;
    button.hidden = chosen !== "step" && runs.every((r) => !(r[chosen].y.at(-1) > 0));
    button.addEventListener("click", () => {
      drawAll(chosen);
      document.getElementById("over").textContent = over.words;
      for (const b of axis.querySelectorAll("button")) b.setAttribute("aria-pressed", b === button);
    });
  }
})();
