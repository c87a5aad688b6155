"""The page of reproduce: plots as SVG, tables, and nothing that has to be fetched."""

import html
import math

COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#17becf", "#8c564b", "#e377c2")
STYLE = """body{font:15px/1.5 system-ui,sans-serif;max-width:62rem;margin:2rem auto;padding:0 1rem;color:#222}
table{border-collapse:collapse;font-size:13px;margin:.6rem 0}td,th{padding:.15rem .6rem;border-bottom:1px solid #ddd;
text-align:right}td:first-child,th:first-child{text-align:left}svg{width:100%;height:auto}h2{margin-top:2.2rem}
.note{color:#444;max-width:50rem}details{margin:.4rem 0}"""


def number(x):
    return "–" if x is None else f"{x:.4g}" if abs(x) < 1e4 else f"{x:.0f}"


def percent(x):
    return "–" if x is None else f"{100 * x:+.1f} %"


def table(head, rows):
    line = lambda cells, tag: "<tr>" + "".join(f"<{tag}>{html.escape(str(c))}</{tag}>" for c in cells) + "</tr>"
    return f"<table>{line(head, 'th')}{''.join(line(r, 'td') for r in rows)}</table>"


def ticks(high):
    step = 10 ** math.floor(math.log10(high / 4 or 1))
    for factor in (1, 2, 5, 10):
        if high / (step * factor) <= 6:
            step *= factor
            break
    return [i * step for i in range(int(high / step) + 1)]


def plot(points, unit):
    """Ours as lines, the paper's as circles, of each curve a colour."""
    width, height, left, bottom, top = 860, 320, 60, 60, 16
    xs = list(dict.fromkeys(p["x"] for p in points))
    bars = isinstance(xs[0], str)
    curves = list(dict.fromkeys(p["curve"] for p in points))
    high = max([v for p in points for v in (p["ours"], p["paper"]) if v is not None], default=1) * 1.08
    if not bars:
        xs.sort()
    right = width - (20 if bars else 190)

    def x_of(x):
        if bars or len(xs) == 1:
            return left + (xs.index(x) + 0.5) * (right - left) / len(xs)
        span = math.log(xs[-1] / xs[0])
        return left + 20 + math.log(x / xs[0]) / span * (right - left - 40)

    def y_of(y):
        return height - bottom - y / high * (height - bottom - top)

    out = [f'<svg viewBox="0 0 {width} {height}" role="img" font-size="12">']
    for y in ticks(high):
        out.append(f'<line x1="{left}" x2="{right}" y1="{y_of(y):.1f}" y2="{y_of(y):.1f}" stroke="#e4e4e4"/>'
                   f'<text x="{left - 6}" y="{y_of(y) + 4:.1f}" text-anchor="end">{y:g}</text>')
    for x in xs:
        words = str(x).split(", ") if bars else [str(x)]
        for row, word in enumerate(words):
            out.append(f'<text x="{x_of(x):.1f}" y="{height - bottom + 16 + 13 * row}" text-anchor="middle"'
                       f' font-size="{10 if bars else 12}">{html.escape(word)}</text>')
    out.append(f'<text x="{left - 50}" y="12">{html.escape(unit)}</text>')
    for n, curve in enumerate(curves):
        colour = COLOURS[n % len(COLOURS)]
        of = [p for p in points if p["curve"] == curve]
        ours = [(x_of(p["x"]), y_of(p["ours"])) for p in of if p["ours"] is not None]
        if bars:
            out += [f'<rect x="{x - 16:.1f}" width="32" y="{y:.1f}" height="{height - bottom - y:.1f}" '
                    f'fill="{colour}" opacity=".45"><title>ours</title></rect>' for x, y in ours]
        else:
            line = " ".join(f"{x:.1f},{y:.1f}" for x, y in sorted(ours))
            out.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>')
            out.append(f'<text x="{right + 8}" y="{top + 14 + 15 * n}" fill="{colour}">{html.escape(curve)}</text>')
        for p in of:
            if p["paper"] is not None:
                tip = f"{curve}, {p['x']}: paper {number(p['paper'])}, ours {number(p['ours'])}"
                out.append(f'<circle cx="{x_of(p["x"]):.1f}" cy="{y_of(p["paper"]):.1f}" r="4.5" fill="#fff" '
                           f'stroke="{"#000" if bars else colour}" stroke-width="2"><title>{html.escape(tip)}'
                           '</title></circle>')
    return "".join(out) + "</svg>"


def figure(key, f):
    e = f["errors"]
    said = (f"{e['points']} points: median error {e['median']:.1%}, largest {e['largest']:.1%}, mean "
            f"{percent(e['mean_signed'])}" if e else "no point has both numbers")
    rows = [(p["curve"], p["x"], number(p["ours"]), number(p["paper"]), percent(p["error"])) for p in f["points"]]
    return (f"<h2>{html.escape(f['title'])}</h2>{plot(f['points'], f['unit'])}<p>{said}.</p>"
            + (f'<p class="note">{html.escape(f["note"])}</p>' if f["note"] else "")
            + "<details><summary>points</summary>"
            + table(("curve", "x", "ours", "paper", "error"), rows) + "</details>")


def judged(report):
    if not report["judged"]:
        return ""
    rows = []
    for j in report["judged"]:
        rows.append((j["label"], ", ".join(f"{k} {v:g}" for k, v in j["numbers"].items()),
                     j["unseen"]["points"], f"{j['unseen']['median']:.2%}", f"{j['unseen']['largest']:.2%}",
                     f"{j['flat_lines']['median']:.2%}", f"{j['flat_lines']['largest']:.2%}"))
    return ("<h2>Points that were not seen</h2><p class=note>6b without prefetch, 7b and 7c; batch 2 on 128 GPUs "
            "aside. A flat line goes through the seen points of the same figure, or through the one that there is.</p>"
            + table(("", "numbers set", "points", "median", "largest", "flat: median", "largest"), rows))


def limit(report):
    m = report.get("memory_limit")
    if not m:
        return ""
    others = ", ".join(f"{k}: {v}" for k, v in m["others_at_that_limit"].items())
    at = (f"{m['retries_a_step_at_four_fifths']} retries a step, {number(m['tflops_at_four_fifths'])} TFLOPS"
          if m["four_fifths_fits"] else "it does not fit")
    return ("<h2>As the memory limit falls</h2><p>Batch 2 on 128 GPUs begins to retry at "
            f"{m['limit_bytes'] / 1e9:.1f} GB; the paper's GPUs have 80. Retries of 7b's other points there: "
            f"{others}. At four fifths of it, {m['four_fifths_bytes'] / 1e9:.1f} GB: {at}. The paper's collapse to half "
            "asks cudaMalloc and cudaFree to take seconds a step: what they cost is in the hardware file, from a "
            "publication, and not fitted.</p>")


def page(report):
    facts = "".join(f"<li>{html.escape(f)}</li>" for f in report.get("facts", []))
    body = ["<h1>The FSDP paper, simulated</h1><p>arXiv 2304.11277. Lines and bars: ours, of the recipes in "
            "configs/paper on configs/hardware/paper-cluster.yaml. Circles: the paper's, most of them read off its "
            "plots.</p>", judged(report)]
    if facts:
        body.append("<h2>What the paper's numbers say before anything is fitted</h2><ul>" + facts + "</ul>")
    body += [figure(key, f) for key, f in report["figures"].items()]
    body.append(limit(report))
    body.append("<h2>Assumptions</h2><p>Numbers of the cluster without a publication. Recipes state theirs in "
                "their heads.</p>" + table(("number", "source"), report["assumptions"].items()))
    return ("<!doctype html><html lang=en><meta charset=utf-8><title>The FSDP paper, simulated</title>"
            f"<style>{STYLE}</style><body>{''.join(body)}</body></html>\n")
