#!/usr/bin/env python3
"""tools/paper/reproduce: what its report holds, and that predictions see no number of the paper."""

import copy
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path.cwd()  # The root of the repository, where Bazel starts a test.
sys.dont_write_bytecode = True
sys.path.insert(0, str(ROOT / "tools/paper"))
import machine  # noqa: E402
import points  # noqa: E402

PAPER = json.loads((ROOT / "tools/paper/paper_results.json").read_text())
CLUSTER = ROOT / "configs/hardware/paper-cluster.yaml"


def reproduce(out, *flags):
    result = subprocess.run([sys.executable, "-B", ROOT / "tools/paper/reproduce", "--binary",
                             ROOT / "cmd/fsdp-train", "--out", out, *map(str, flags)],
                            capture_output=True, text=True)
    return result, (json.loads((pathlib.Path(out) / "report.json").read_text())
                    if result.returncode == 0 else None)


def perturbed(tree, keep=()):
    """Every number half as large again, but those at the places `keep`."""
    def walk(node, at):
        if isinstance(node, dict):
            return {k: walk(n, (*at, k)) for k, n in node.items()}
        if isinstance(node, list):
            return [walk(n, (*at, i)) for i, n in enumerate(node)]
        return node * 1.5 if isinstance(node, float) and at not in keep else node
    return walk(copy.deepcopy(tree), ())


class Reproduce(unittest.TestCase):
    def test_each_number_of_the_paper_has_its_place(self):
        for value in points.VALUES:
            self.assertIsInstance(machine.paper_of(value, PAPER), (int, float, type(None)))
        self.assertEqual(len(points.judged((points.SEEN,))), 25)
        self.assertEqual(len(points.judged(points.SEEN_MORE)), 23)

    def test_what_the_papers_program_keeps_beside_counts(self):
        memory = {"memory": {f"{kind}_peak": 40e9 for kind in points.KINDS}}
        for recipe, gb in (("mingpt-175b", 41.610612736), ("t5-11b", 40)):
            value = points.Value("8b", "", 128, points.Run(recipe, 128, 1), "active", ())
            self.assertAlmostEqual(machine.value_of(value, memory), gb)

    def test_predictions_read_no_number_of_the_paper(self):
        with tempfile.TemporaryDirectory() as scratch:
            result, report = reproduce(pathlib.Path(scratch) / "a", "--figures", "2b,6b")
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertEqual(set(report["figures"]), {"2b", "6b"})
            self.assertIn("6 of 6: mingpt-175b", result.stderr)
            page = (pathlib.Path(scratch) / "a/report.html").read_text()
            self.assertEqual(page.count("<svg"), 2)
            self.assertNotIn("http", page)
            other = pathlib.Path(scratch) / "paper.json"
            other.write_text(json.dumps(perturbed(PAPER)))
            _, changed = reproduce(pathlib.Path(scratch) / "b", "--figures", "2b,6b", "--paper", other)
            for figure in ("2b", "6b"):
                for mine, theirs in zip(report["figures"][figure]["points"],
                                        changed["figures"][figure]["points"]):
                    self.assertEqual(mine["ours"], theirs["ours"])
                    self.assertNotEqual(mine["paper"], theirs["paper"])
                    self.assertAlmostEqual(mine["error"], mine["ours"] / mine["paper"] - 1)

    def test_the_first_bar_of_2a_sets_its_size(self):
        for scale in (1, 2):
            paper = json.loads(json.dumps(PAPER))
            base = paper["fig2a_all_gather_ms"]["even_base"] = PAPER["fig2a_all_gather_ms"]["even_base"] * scale
            with tempfile.TemporaryDirectory() as scratch:
                other = pathlib.Path(scratch) / "paper.json"
                other.write_text(json.dumps(paper))
                _, report = reproduce(pathlib.Path(scratch) / "out", "--figures", "2a", "--paper", other)
            ours = {p["x"]: p["ours"] for p in report["figures"]["2a"]["points"]}
            self.assertEqual(set(ours), {"even_list", "uneven_1_element", "uneven_1e6_elements"})
            for bar in ours.values():  # A list costs a copy, broadcasts a start for each rank.
                self.assertGreater(bar, base)
                self.assertLess(bar, 1.2 * base)

    def test_a_fit_reads_the_seen_point_alone(self):
        seen = points.named(points.SEEN)
        text = CLUSTER.read_text()
        with tempfile.TemporaryDirectory() as scratch:
            fitted = [machine.fit(ROOT / "cmd/fsdp-train", ROOT, text, (points.SEEN,), paper, scratch,
                                  lambda _: None)
                      for paper in (PAPER, perturbed(PAPER, keep={seen.where}))]
            self.assertEqual(fitted[0], fitted[1])
            number, name = fitted[0]["reached"]
            self.assertEqual(name, points.SEEN)
            # The committed file has the number.
            self.assertAlmostEqual(machine.number_of(text, "reached"), number, delta=0.006)
            self.assertEqual(machine.sources_of(text)["reached"], f"seen: {points.SEEN}")

    def test_numbers_of_a_hardware_file_are_replaced_with_their_sources(self):
        text = machine.with_numbers(CLUSTER.read_text(), {
            "network.between.ring_bytes_per_s": (1e11, "6b no_prefetch 256"),
            "unfused_bytes": (2.0, "7c batch_16 64")})
        self.assertEqual(machine.number_of(text, "network.between.ring_bytes_per_s"), 1e11)
        self.assertEqual(machine.number_of(text, "network.inside.ring_bytes_per_s"),
                         machine.number_of(CLUSTER.read_text(), "network.inside.ring_bytes_per_s"))
        self.assertEqual(machine.number_of(text, "unfused_bytes"), 2.0)
        self.assertEqual(machine.sources_of(text)["unfused_bytes"], "seen: 7c batch_16 64")

    def test_wrong_flags_are_refused(self):
        for flags in (("--figures", "9z"), ("--fit", "most")):
            result, _ = reproduce("/nonexistent", *flags)
            self.assertEqual(result.returncode, 2, result.stderr)
            self.assertEqual(result.stdout, "")


if __name__ == "__main__":
    unittest.main()
