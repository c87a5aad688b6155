// The parts of a browser that page.js needs, for node: `node page_stand_in.js PAGE ACTION..` runs the page's script, then each
// action ("log 0", "curve 0 1", "axis time": what is clicked; "hover 0 0.5": at that share of the width), and prints
// each plot's labels, paths and tip as JSON.
"use strict";
const fs = require("fs");

class Element {
  constructor(tag) {
    Object.assign(this, {tag, className: "", style: {}, dataset: {}, children: [], attributes: {}, listeners: {}, text: ""});
  }
  get textContent() { return this.text + this.children.map((c) => typeof c === "string" ? c : c.textContent).join(""); }
  set textContent(text) { this.text = text; this.children = []; }
  append(...more) { this.children.push(...more); }
  get firstChild() { return this.children[0]; }
  set innerHTML(html) {  // One element of our own: tags, classes, no text.
    const open = [this];
    for (const [, end, tag, attributes, closed] of html.matchAll(/<(\/?)(\w+)([^>]*?)(\/?)>/g)) {
      if (end) { open.pop(); continue; }
      const element = new Element(tag);
      for (const [, name, value] of attributes.matchAll(/(\w+)="([^"]*)"/g)) element.setAttribute(name, value);
      open.at(-1).append(element);
      if (!closed) open.push(element);
    }
  }
  setAttribute(name, value) {
    this.attributes[name] = String(value);
    if (name === "class") this.className = value;
  }
  addEventListener(name, listener) { this.listeners[name] = listener; }
  all() { return this.children.flatMap((c) => typeof c === "string" ? [] : [c, ...c.all()]); }
  querySelectorAll(what) {
    return this.all().filter((e) => what[0] === "." ? e.className.split(" ").includes(what.slice(1)) : e.tag === what);
  }
  querySelector(what) { return this.querySelectorAll(what)[0] ?? null; }
  getBoundingClientRect() { return {left: 0, width: 1000}; }
}

const page = fs.readFileSync(process.argv[2], "utf8");
const scripts = [...page.matchAll(/<script[^>]*>([^]*?)<\/script>/g)].map((match) => match[1]);
const byId = {data: new Element("script"), plots: new Element("div"), over: new Element("span")};
byId.data.text = scripts[0];
if (page.includes('id="axis"')) {
  byId.axis = new Element("div");
  for (const [, axis] of page.matchAll(/data-axis="(\w+)"/g)) {
    const button = new Element("button");
    button.dataset.axis = axis;
    byId.axis.append(button);
  }
}
global.document = {createElement: (tag) => new Element(tag), getElementById: (id) => byId[id] ?? null};
(0, eval)(scripts[1]);

const figures = byId.plots.children;
for (const action of process.argv.slice(3)) {
  const [what, of, which] = action.split(" ");
  if (what === "log") figures[of].querySelector(".log").listeners.click();
  if (what === "curve") figures[of].querySelector(".legend").children[which].listeners.click();
  if (what === "axis") byId.axis.children.find((b) => b.dataset.axis === of).listeners.click();
  if (what === "hover") figures[of].querySelector(".area").listeners.pointermove({clientX: 1000 * which});
}
const texts = (element) => element.children.map((c) => c.textContent);
console.log(JSON.stringify(figures.map((figure) => ({
  id: figure.id,
  caption: figure.querySelector("figcaption").children.slice(0, 2).map((c) => c.textContent),
  log: figure.querySelector(".log")?.attributes["aria-pressed"] ?? null,
  legend: texts(figure.querySelector(".legend")),
  ys: texts(figure.querySelector(".ys")),
  xs: texts(figure.querySelector(".xs")),
  grid: figure.querySelector(".grid").attributes.d,
  strokes: figure.querySelectorAll(".stroke").map((p) => p.attributes.d),
  dots: figure.querySelectorAll(".dot").map((p) => p.attributes.d),
  holes: figure.querySelectorAll(".hole").map((p) => p.attributes.d),
  marks: figure.querySelector(".legend").querySelectorAll("i").map((i) => i.className),
  shown: figure.querySelectorAll("g").map((g) => g.style.display !== "none"),
  tip: figure.querySelector(".tip").textContent,
  over: byId.over.textContent,
}))));
