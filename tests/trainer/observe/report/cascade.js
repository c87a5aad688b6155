// The part of a browser that gives shapes their colours, for node: `node cascade.js PAGE` prints the computed style of
// each path and rect of a page's steps, as JSON. Rules of every @media count, and every pseudo-class matches, so a
// shape that has its colour here has it on any screen. A selector or an attribute that this does not know is an error.
"use strict";
const fs = require("fs");
const page = fs.readFileSync(process.argv[2], "utf8");

const VOID = new Set(["meta", "link", "br", "hr", "img", "input"]);
function elementsOf(html) {
  const root = {tag: "", attributes: {}, parent: null}, all = [];
  let open = root;
  const text = html.replace(/<!--[^]*?-->|<!doctype[^>]*>/gi, "").replace(/<(script|style)([^>]*)>[^]*?<\/\1>/g, "<$1$2></$1>");
  for (const [, end, tag, attributes, closed] of text.matchAll(/<(\/?)([a-zA-Z][\w-]*)([^>]*?)(\/?)>/g)) {
    if (end) {
      for (let at = open; at !== root; at = at.parent) if (at.tag === tag) { open = at.parent; break; }
      continue;
    }
    const element = {tag, attributes: {}, parent: open};
    for (const [, name, value] of attributes.matchAll(/([\w-]+)(?:="([^"]*)")?/g)) element.attributes[name] = value ?? "";
    all.push(element);
    if (!closed && !VOID.has(tag)) open = element;
  }
  return all;
}

function declarationsOf(text) {
  return text.split(";").filter((d) => d.includes(":")).map((d) => {
    const colon = d.indexOf(":"), value = d.slice(colon + 1).trim(), important = value.endsWith("!important");
    return {name: d.slice(0, colon).trim(), value: value.replace(/\s*!important$/, ""), important};
  });
}
function rulesOf(css) {
  const rules = [];
  const flat = css.replace(/\/\*[^]*?\*\//g, "").replace(/@media[^{]*\{((?:[^{}]*\{[^{}]*\})*)\s*\}/g, "$1");
  for (const [, selectors, body] of flat.matchAll(/([^{}]+)\{([^{}]*)\}/g)) {
    if (selectors.includes("@")) throw new Error("no at-rule is known but @media: " + selectors);
    for (const selector of selectors.split(",")) rules.push({parts: partsOf(selector.trim()), declarations: declarationsOf(body)});
  }
  return rules;
}
// "a > b.c" as [{simple: [..], child: false}, {simple: [..], child: true}].
function partsOf(selector) {
  const parts = [];
  let child = false;
  for (const word of selector.replace(/\s*>\s*/g, " > ").split(/\s+/)) {
    if (word === ">") { child = true; continue; }
    const simple = word.match(/::?[\w-]+(?:\([^)]*\))?|\[[^\]]*\]|[.#]?[\w-]+|\*/g) ?? [];
    if (simple.join("") !== word) throw new Error("no such selector is known: " + selector);
    parts.push({simple, child});
    child = false;
  }
  return parts;
}
function matchesSimple(element, simple) {
  if (simple === "*" || simple[0] === ":") return true;
  if (simple[0] === ".") return (element.attributes.class ?? "").split(/\s+/).includes(simple.slice(1));
  if (simple[0] === "#") return element.attributes.id === simple.slice(1);
  if (simple[0] !== "[") return element.tag === simple;
  const [name, value] = simple.slice(1, -1).split("=");
  return name in element.attributes && (value === undefined || element.attributes[name] === value.replace(/"/g, ""));
}
function matches(element, parts) {
  const last = parts.length - 1;
  if (!parts[last].simple.every((s) => matchesSimple(element, s))) return false;
  if (last === 0) return true;
  for (let at = element.parent; at; at = at.parent) {
    if (matches(at, parts.slice(0, last))) return true;
    if (parts[last].child) return false;
  }
  return false;
}
const weight = (parts) => parts.flatMap((p) => p.simple).reduce((sum, s) =>
  sum + (s[0] === "#" ? 1e6 : ".[:".includes(s[0]) ? 1e3 : s === "*" ? 0 : 1), 0);

const css = [...page.matchAll(/<style>([^]*?)<\/style>/g)].map((m) => m[1]).join("\n");
const rules = rulesOf(css);
if (rules.length < 20) throw new Error("the page has no style");
const INHERITED = new Set(["fill", "stroke", "visibility"]);
function computed(element, name) {
  let best = {rank: -1, value: undefined};
  const offer = (rank, value) => { if (rank >= best.rank) best = {rank, value}; };
  if (name in element.attributes) offer(0, element.attributes[name]);  // Any rule outranks it.
  for (const rule of rules) {
    for (const d of rule.declarations) {
      if (d.name === name && matches(element, rule.parts)) offer(1 + weight(rule.parts) + (d.important ? 1e12 : 0), d.value);
    }
  }
  for (const d of declarationsOf(element.attributes.style ?? "")) {
    if (d.name === name) offer(1e9 + (d.important ? 1e12 : 0), d.value);
  }
  if (best.value !== undefined && best.value !== "inherit") return best.value;
  return element.parent && INHERITED.has(name) ? computed(element.parent, name) : undefined;
}
function shown(element) {
  if (computed(element, "visibility") === "hidden") return false;
  for (let at = element; at; at = at.parent) if (computed(at, "display") === "none" || computed(at, "opacity") === "0") return false;
  return true;
}
const within = (element, test) => element !== null && (test(element) || within(element.parent, test));
const shapes = elementsOf(page).filter((e) => ["path", "rect"].includes(e.tag) &&
  within(e, (at) => at.tag === "svg") && !within(e, (at) => at.tag === "pattern"));
console.log(JSON.stringify(shapes.map((e) => ({
  tag: e.tag, fill: computed(e, "fill"), stroke: computed(e, "stroke"), shown: shown(e),
  bar: within(e, (at) => at.attributes["aria-label"] === "a step"),
}))));
