#!/usr/bin/env python3
"""Holds the prices of products and collectives to what others have measured and published.

    tools/paper/parts.py           fits them, and prints what the committed hardware files miss
    tools/paper/parts.py --check   exits with 1 where half of the rows are off by more than the limits

Rows: openxla_*.json and azure_products.json, each with its source and commit. Products have three
numbers a GPU: product_share, tile_terms and launch_s. The share is published apart, of huge products,
and not fitted. Collectives inside a host have five: collective_s; rate and step of a ring, for gathers
and reductions; rate and step of a pairwise exchange. A fit to half of the rows is also held to the
other half.

The prices are copies of trainer/simulate/price_list.cc and network.cc;
tests/trainer/simulate/published_*_test.cc have the same medians from the program's own.
"""

import argparse
import json
import math
import pathlib
import re
import statistics
import sys

HERE = pathlib.Path(__file__).resolve().parent
HARDWARE = HERE.parents[1] / "configs" / "hardware"
# The goals of docs/simulator.md's parts: limits of the median error.
PRODUCTS, COLLECTIVES = 0.08, 0.15
# Below a MiB NCCL takes other protocols, whose latencies are lower.
LEAST_BYTES = 1 << 20

TILES = ((128, 256, 1.0), (256, 128, 1.0), (128, 128, 0.9), (64, 256, 0.8), (256, 64, 0.8),
         (64, 128, 0.75), (128, 64, 0.75), (64, 64, 0.55))
MOST_PARTS, FEWEST_TERMS, ENDS_OF_PARTS, TERMS_OF_FAST = 16, 256, 3, 2048


def numbers_of(path):
    """The numbers of a hardware file by their keys with dots. For files that are written as ours are."""
    found, above = {}, []
    for line in path.read_text().splitlines():
        match = re.match(r"^( *)([\w.]+):(?: +(\S+))?", line)
        if not match:
            continue
        depth = len(match[1]) // 2
        above[depth:] = [match[2]]
        try:
            found[".".join(above)] = float(match[3] or "")
        except ValueError:
            pass
    return found


def used(m, n, k, multiprocessors, tile_terms):
    """The share of the multiprocessors' time in which they add terms of the product."""
    least = math.inf
    for rows, columns, share in TILES:
        tiles = -(-m // rows) * -(-n // columns)
        for parts in range(1, MOST_PARTS + 1):
            terms = -(-k // parts)
            if parts > 1 and terms < FEWEST_TERMS:
                break
            waves = -(-tiles * parts // multiprocessors)
            ends = (ENDS_OF_PARTS if parts > 1 else 1) * tile_terms
            least = min(least, waves * multiprocessors * rows * columns * (terms + ends) / share)
    return m * n * k / least


class Products:
    """Rows of one GPU, and their prices."""

    def __init__(self, gpu, rows):
        self.rows, self.file = rows, numbers_of(HARDWARE / f"{gpu}.yaml")
        self.flops = [2.0 * count * m * n * k for count, m, n, k, _ in rows]
        self.seconds = [f / (row[4] * 1e12) for f, row in zip(self.flops, rows)]
        copy = self.file["copy_bytes_per_s"]
        self.moved = [2.0 * count * (m * k + k * n + m * n) / copy for count, m, n, k, _ in rows]
        self.of_terms = {}

    def shares(self, tile_terms):
        """Shares of the rate, by row. A batch of products in one kernel counts as one product with as many
        times the rows."""
        if tile_terms not in self.of_terms:
            fast = TERMS_OF_FAST / (TERMS_OF_FAST + tile_terms)
            sms = int(self.file["multiprocessors"])
            self.of_terms[tile_terms] = [
                min(1.0, used(count * m, n, k, sms, tile_terms) / fast)
                for count, m, n, k, _ in self.rows]
        return self.of_terms[tile_terms]

    def errors(self, rate, tile_terms, launch, of=None):
        """Relative errors of the FLOP/s, by row."""
        shares = self.shares(tile_terms)
        return [abs(self.seconds[i] / (max(self.flops[i] / (rate * shares[i]), self.moved[i]) +
                                       launch) - 1)
                for i in (of if of is not None else range(len(self.rows)))]

    def rate(self, share):
        return share * self.file["bf16_flops"]

    def fit(self, share, of=None):
        """Terms and launch with the least sum of median and mean error."""
        def loss(candidate):
            errors = self.errors(self.rate(share), *candidate, of)
            return statistics.median(errors) + statistics.fmean(errors)
        terms = range(0, 385, 32)
        return min(((t, launch * 2e-7) for t in terms for launch in range(0, 36)), key=loss)

    def committed(self):
        return (self.rate(self.file["product_share"]), int(self.file["tile_terms"]),
                self.file["launch_s"])

    def flat(self):
        """With one rate for every shape, the share of a huge one."""
        rate = self.rate(self.file["product_share"])
        return [abs(s * rate / f - 1) for f, s in zip(self.flops, self.seconds)]


RINGS = {"all-gather": 1, "reduce-scatter": 1, "all-reduce": 2}


def terms_of(row):
    """The factors of a collective's five numbers: collective_s; a ring's step and its time of a byte; a
    pairwise exchange's step and its time of a byte."""
    op, ranks, size, _ = row
    if op in RINGS:
        steps = RINGS[op] * (ranks - 1)
        return [1.0, steps, steps * size / ranks, 0.0, 0.0]
    return [1.0, 0.0, 0.0, ranks - 1.0, (ranks - 1) * size / ranks]


def solve(matrix, right):
    """Gauss-Jordan, with pivots."""
    n = len(right)
    rows = [list(matrix[i]) + [right[i]] for i in range(n)]
    for i in range(n):
        pivot = max(range(i, n), key=lambda j: abs(rows[j][i]))
        rows[i], rows[pivot] = rows[pivot], rows[i]
        for j in range(n):
            if j != i:
                factor = rows[j][i] / rows[i][i]
                rows[j] = [a - factor * b for a, b in zip(rows[j], rows[i])]
    return [rows[i][n] / rows[i][i] for i in range(n)]


def fit_collectives(rows):
    """The numbers with the least sum of relative errors: least squares, weighted anew."""
    kept = list(range(5))
    while True:
        lines = [[terms_of(row)[i] / (row[3] * 1e-6) for i in kept] for row in rows]
        scale = [max(line[i] for line in lines) for i in range(len(kept))]
        lines = [[a / s for a, s in zip(line, scale)] for line in lines]
        weights = [1.0] * len(rows)
        for _ in range(100):
            matrix = [[sum(w * line[i] * line[j] for w, line in zip(weights, lines))
                       for j in range(len(kept))] for i in range(len(kept))]
            right = [sum(w * line[i] for w, line in zip(weights, lines)) for i in range(len(kept))]
            found = solve(matrix, right)
            weights = [1 / max(1e-4, abs(sum(a * b for a, b in zip(line, found)) - 1))
                       for line in lines]
        if min(found) >= 0:
            numbers = [0.0] * 5
            for place, value, s in zip(kept, found, scale):
                numbers[place] = value / s
            return numbers
        kept.pop(min(range(len(kept)), key=lambda i: found[i]))  # A time below 0 is none.


def collective_errors(rows, numbers):
    return [abs(sum(a * b for a, b in zip(terms_of(row), numbers)) / (row[3] * 1e-6) - 1)
            for row in rows]


def committed_collectives(gpu):
    file = numbers_of(HARDWARE / f"{gpu}.yaml")
    inside = {key: file["network.inside." + key] for key in
              ("ring_step_s", "ring_bytes_per_s", "all_to_all_step_s", "all_to_all_bytes_per_s")}
    return [file["network.collective_s"], inside["ring_step_s"], 1 / inside["ring_bytes_per_s"],
            inside["all_to_all_step_s"], 1 / inside["all_to_all_bytes_per_s"]]


def show(errors):
    ordered = sorted(errors)
    return (f"median {100 * statistics.median(ordered):5.1f} %   nine of ten below "
            f"{100 * ordered[len(ordered) * 9 // 10]:5.1f} %   worst {100 * ordered[-1]:4.0f} %")


def halves(count):
    return list(range(0, count, 2)), list(range(1, count, 2))


def products(name, fitting):
    """Prints; the names of GPUs that are off the limit."""
    off = []
    published = json.loads((HERE / name).read_text())
    print(f"\nProducts: {published['source']}")
    for gpu, entry in published["gpus"].items():
        rows = Products(gpu, entry["rows"])
        rate, terms, launch = rows.committed()
        errors = rows.errors(rate, terms, launch)
        share = rows.file["product_share"]
        print(f"{gpu}, {len(rows.rows)} shapes")
        print(f"  {gpu}.yaml: {share:.3f}, {terms} terms, {launch * 1e6:.1f} us   {show(errors)}")
        print(f"  one rate for every shape         {show(rows.flat())}")
        if fitting and len(rows.rows) > 10:
            best = rows.fit(share)
            print(f"  fitted: {best[0]} terms, {best[1] * 1e6:.1f} us      "
                  f"{show(rows.errors(rows.rate(share), *best))}")
            for half, other in (halves(len(rows.rows)), halves(len(rows.rows))[::-1]):
                best = rows.fit(share, half)
                print(f"  to half: {best[0]} terms, {best[1] * 1e6:.1f} us; the other "
                      f"{show(rows.errors(rows.rate(share), *best, other))}")
        if statistics.median(errors) > PRODUCTS:
            off.append(f"products of {gpu}")
    return off


def collectives(fitting):
    off = []
    published = json.loads((HERE / "openxla_collectives.json").read_text())
    print(f"\nCollectives of at least {LEAST_BYTES >> 20} MiB: {published['source']}")
    for gpu, entry in published["gpus"].items():
        rows = [row for row in entry["rows"] if row[2] >= LEAST_BYTES]
        numbers = committed_collectives(gpu)
        errors = collective_errors(rows, numbers)
        print(f"{gpu}, {len(rows)} rows of 2, 4 and 8 ranks")

        def describe(numbers):
            base, step, byte, pair, pair_byte = numbers
            return (f"{base * 1e6:.1f} us, ring {step * 1e6:.2f} us and {1e-9 / byte:.0f} GB/s, "
                    f"pairs {pair * 1e6:.2f} us and {1e-9 / pair_byte:.0f} GB/s")
        print(f"  {gpu}.yaml: {describe(numbers)}\n    {show(errors)}")
        for op in sorted({row[0] for row in rows}):
            print(f"    {op:15}" + show([e for e, row in zip(errors, rows) if row[0] == op]))
        flat = [0.0, 0.0, numbers[2], 0.0, numbers[4]]
        print(f"    bytes at their rate alone        {show(collective_errors(rows, flat))}")
        if fitting:
            # Two ranks, each with one neighbour, have a lower rate than any ring of a whole host.
            wide = [row for row in rows if row[1] >= 4]
            best = fit_collectives(wide)
            print(f"  fitted to 4 and 8 ranks: {describe(best)}\n"
                  f"    these: {show(collective_errors(wide, best))}\n"
                  f"    all:   {show(collective_errors(rows, best))}")
            for half, other in (halves(len(wide)), halves(len(wide))[::-1]):
                best = fit_collectives([wide[i] for i in half])
                print(f"  to half of them: {describe(best)}\n    the other: "
                      f"{show(collective_errors([wide[i] for i in other], best))}")
        if statistics.median(errors) > COLLECTIVES:
            off.append(f"collectives of {gpu}")
    return off


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true",
                        help="fit nothing; exit with 1 where a committed file is off the limits")
    options = parser.parse_args()
    off = []
    for name in ("openxla_products.json", "azure_products.json"):
        off += products(name, fitting=not options.check)
    off += collectives(fitting=not options.check)
    for what in off:
        print(f"off the limit: {what}", file=sys.stderr)
    return 1 if off else 0


if __name__ == "__main__":
    sys.exit(main())
