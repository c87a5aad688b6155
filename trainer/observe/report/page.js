// Hover, curves on and off, linear and logarithmic axes, curves over steps, tokens (or samples) or time. Without it the page shows the same curves.
"use strict";
(() => {
  const SIZE = 1000;
  document.documentElement.classList.add("js");

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
    const decades = Math.log10(high / low);
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
      const pad = (high / low) ** 0.04 * 1.001;
      return {low: low / pad, high: high * pad, log: true};
    }
    if (fromZero && low > 0 && low < 0.4 * high) low = 0;
    let pad = 0.04 * (high - low);
    if (high - low < 5e-3 * Math.abs(high)) pad = 0.02 * Math.abs(high);
    if (pad === 0) pad = 1;
    return {low: low === 0 ? 0 : low - pad, high: high + pad, log: false};
  }
  const at = (axis, y) => axis.log
    ? (y > 0 ? Math.log(y / axis.low) / Math.log(axis.high / axis.low) : NaN)
    : (y - axis.low) / (axis.high - axis.low);

  const {plots: all, runs, targets} = JSON.parse(document.getElementById("data").textContent);
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
    for (const {data} of plots) {
      for (const c of data.curves) {
        c.at = axis === "step" ? c.x : c.x.map((step) => place(runs[c.run][axis], step) / scale);
      }
    }
  }
  const end = (plot) => over.axis === "step" ? plot.data.max : over.max;

  function drawSteps(plot) {
    const xs = plot.figure.querySelector(".xs");
    xs.textContent = "";
    for (const tick of ticks(0, end(plot), 4)) {
      const span = document.createElement("span");
      span.textContent = label(tick);
      span.style.left = 100 * tick / end(plot) + "%";
      xs.append(span);
    }
    for (const g of plot.figure.querySelectorAll("g[data-curve]")) {
      const c = plot.data.curves[Number(g.dataset.curve)];
      if (hasValues(c)) continue;
      const foot = c.style === "marks" ? "V0" : "V955";
      g.querySelector(".stroke").setAttribute("d", c.at.filter(Number.isFinite)
        .map((x) => `M${(SIZE * x / end(plot)).toFixed(1)} ${SIZE}${foot}`).join(""));
    }
  }

  function draw(plot) {
    const {figure, data, hidden, log} = plot;
    const axis = plot.axis = axisOf(data.curves.filter((_, i) => !hidden.has(i)), log, data.from_zero);
    const ys = figure.querySelector(".ys");
    ys.textContent = "";
    let grid = "";
    for (const tick of axis.log ? logTicks(axis.low, axis.high, 5) : ticks(axis.low, axis.high, 5)) {
      const y = at(axis, tick), span = document.createElement("span");
      span.textContent = label(Math.abs(tick) < 1e-12 * axis.high ? 0 : tick);
      span.style.bottom = 100 * y + "%";
      ys.append(span);
      grid += `M0 ${(SIZE * (1 - y)).toFixed(1)}H${SIZE}`;
    }
    figure.querySelector("path.grid").setAttribute("d", grid);
    for (const g of figure.querySelectorAll("g[data-curve]")) {
      const i = Number(g.dataset.curve), c = data.curves[i];
      g.style.display = hidden.has(i) ? "none" : "";
      if (!hasValues(c)) continue;
      let line = "", dots = "", open = false;
      for (let k = 0; k < c.x.length; ++k) {
        const y = at(axis, c.y[k]);
        if (!Number.isFinite(y) || !Number.isFinite(c.at[k])) { open = false; continue; }
        const point = `${(SIZE * c.at[k] / end(plot)).toFixed(1)} ${(SIZE * (1 - y)).toFixed(1)}`;
        line += (open ? "L" : "M") + point;
        dots += "M" + point + "h0";
        open = true;
      }
      g.querySelector(".stroke").setAttribute("d", line);
      const dot = g.querySelector(".dot");
      if (dot) dot.setAttribute("d", dots);
    }
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
    const area = plot.figure.querySelector(".area");
    const cursor = document.createElement("div"), tip = document.createElement("div");
    cursor.className = "cursor";
    tip.className = "tip";
    cursor.hidden = true;
    cursor.append(tip);
    area.append(cursor);
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
      tip.textContent = "step " + step + (over.axis === "step" ? "" : ", " + exact(here) + " " + over.unit);
      for (const {c, k} of shown) {
        const row = document.createElement("div"), mark = document.createElement("i");
        const value = document.createElement("b");
        row.className = c.colour;
        mark.className = "swatch";
        if (c.style === "faint") mark.style.opacity = .45;
        value.textContent = exact(c.y[k]);
        row.append(mark, c.name + (c.x[k] === step ? "" : " (step " + c.x[k] + ")"), value);
        tip.append(row);
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

  const plots = [];
  for (const data of all) {
    const figure = document.getElementById(data.id);
    if (!figure) continue;
    const button = figure.querySelector(".log");
    const plot = {figure, data, hidden: new Set(), log: button?.getAttribute("aria-pressed") === "true"};
    if (button) {
      button.hidden = false;
      button.addEventListener("click", () => {
        plot.log = !plot.log;
        button.setAttribute("aria-pressed", plot.log);
        draw(plot);
      });
    }
    for (const entry of figure.querySelectorAll(".legend button")) {
      entry.addEventListener("click", () => {
        const i = Number(entry.dataset.curve);
        if (!plot.hidden.delete(i)) plot.hidden.add(i);
        entry.setAttribute("aria-pressed", !plot.hidden.has(i));
        draw(plot);
      });
    }
    plots.push(plot);
    hover(plot);
  }
  choose("step");
  const axis = document.getElementById("axis");
  axis.hidden = false;
  for (const button of axis.querySelectorAll("button")) {
    const chosen = button.dataset.axis;
    button.hidden = chosen !== "step" && runs.every((r) => !(r[chosen].y.at(-1) > 0));
    button.addEventListener("click", () => {
      choose(chosen);
      document.getElementById("over").textContent = over.words;
      for (const b of axis.querySelectorAll("button")) b.setAttribute("aria-pressed", b === button);
      for (const plot of plots) { drawSteps(plot); draw(plot); }
    });
  }
})();
