#!/usr/bin/env python3
"""The reports of the scripts of tools/bench: turns, ratios, and whether it was one work."""

import contextlib
import io
import json
import os
import sys
import types
import unittest

sys.path.insert(0, os.path.join(os.getcwd(), "tools/bench"))
import comm  # noqa: E402
import curves  # noqa: E402
import host_adamw  # noqa: E402
import model_curves  # noqa: E402
import options  # noqa: E402
import predict  # noqa: E402
import products  # noqa: E402
import regnet  # noqa: E402
import spans  # noqa: E402
import step  # noqa: E402
import turns  # noqa: E402


class Fake(turns.Participant):
    def __init__(self, name, tokens=100, seconds=1.0, losses=None, parameters=7, log=None):
        self.name, self.tokens, self.parameters = name, tokens, parameters
        self.seconds, self.checked, self.log = seconds, losses, log
        self.peak_bytes = 1 << 30

    def turn(self):
        if self.log is not None:
            self.log.append(self.name)
        return [self.seconds, 3 * self.seconds, 2 * self.seconds]

    def losses(self):
        return self.checked


class Turns(unittest.TestCase):
    def test_the_order_is_reversed_every_round(self):
        log = []
        participants = [Fake(name, log=log) for name in "abc"]
        times = turns.alternate(participants, rounds=3, progress=False)
        self.assertEqual("".join(log), "abccbaabc")
        self.assertEqual([len(t) for t in times], [3, 3, 3])

    def test_spread(self):
        self.assertEqual(turns.spread([4.0, 1.0, 2.0, 3.0, 5.0]),
                         {"median": 3.0, "q1": 2.0, "q3": 4.0, "min": 1.0, "max": 5.0, "n": 5})
        self.assertEqual(turns.spread([2.0])["q3"], 2.0)

    def test_lines_are_asked_and_answered(self):
        echo = [sys.executable, "-u", "-c",
                "import sys\nfor line in sys.stdin: print('[%s]' % line.strip())"]
        lines = turns.LineProcesses([echo, echo], priority=False, log=os.devnull)
        self.assertEqual(lines.ask_all(5), [[5], [5]])
        self.assertGreater(lines.peak(), 1 << 20)
        lines.stop()
        self.assertEqual([p.returncode for p in lines.processes], [0, 0])

    def test_a_participant_that_ends_is_an_error(self):
        lines = turns.LineProcesses([[sys.executable, "-c", ""]], priority=False, log=os.devnull)
        with self.assertRaises(SystemExit):
            lines.ask(1)
        for process in lines.processes:
            process.wait()


class Summary(unittest.TestCase):
    def test_ratio_is_of_tokens_a_second(self):
        # Twice as long for the same tokens; and as long for half of them.
        for tokens, seconds in ((100, 2.0), (50, 1.0)):
            participants = [Fake("ours"), Fake("it", tokens=tokens, seconds=seconds)]
            times = turns.alternate(participants, rounds=2, progress=False)
            rows = step.summarise(participants, times)
            self.assertEqual(rows[1]["ratio"]["median"], 2.0)  # Ours is twice as fast.
            self.assertEqual(rows[0]["ratio"]["median"], 1.0)
            self.assertEqual(rows[1]["tokens_per_s"], tokens / (2 * seconds))

    def test_the_same_work(self):
        ours = [(10.0, 2.0), (9.0, 1.0)]
        same = [(10.00001, 2.0), (9.0, 1.0005)]
        worst = step.check_same_work([Fake("ours", losses=ours), Fake("it", losses=same)])
        self.assertAlmostEqual(worst, 5e-4, places=6)

    def test_bf16_is_rounded_in_other_places(self):
        ours = Fake("ours", losses=[(10.0, 2.0), (9.0, 1.0)])
        step.check_same_work([ours, Fake("it", losses=[(10.01, 2.02), (9.01, 1.01)])], bf16=True)
        with self.assertRaises(SystemExit):
            other = Fake("it", losses=[(10.0, 2.0), (9.0, 1.02)])
            step.check_same_work([ours, other], bf16=True)

    def test_other_work_is_refused(self):
        ours = Fake("ours", losses=[(10.0, 2.0), (9.0, 1.0)])
        for other in (Fake("loss", losses=[(10.001, 2.0), (9.0, 1.0)]),
                      Fake("norm", losses=[(10.0, 2.001), (9.0, 1.0)]),
                      Fake("later", losses=[(10.0, 2.0), (9.02, 1.0)]),
                      Fake("nan", losses=[(10.0, 2.0), (float("nan"), 1.0)]),
                      Fake("parameters", losses=ours.checked, parameters=8)):
            with self.assertRaises(SystemExit, msg=other.name):
                step.check_same_work([ours, other])

    def test_batch_norms_may_differ_by_more(self):
        ours = Fake("ours", losses=[(10.0, 2.0), (9.0, 1.0)])
        step.check_same_work([ours, Fake("it", losses=[(10.0, 2.001), (9.02, 1.0)])],
                             batch_norm=True)
        for losses in ([(10.001, 2.0), (9.0, 1.0)], [(10.0, 2.01), (9.0, 1.0)],
                       [(10.0, 2.0), (9.2, 1.0)]):
            with self.assertRaises(SystemExit):
                step.check_same_work([ours, Fake("it", losses=losses)], batch_norm=True)


class Named:
    def __init__(self, name):
        self.name = name


class Collectives(unittest.TestCase):
    def test_a_ratio_is_of_bytes_a_second(self):
        def records(seconds):
            return {("all_reduce", 64): {"seconds": seconds, "memcpy_seconds": 0.5},
                    ("all_gather", 64): {"seconds": 2 * seconds, "memcpy_seconds": 0.5}}

        groups = [Named("bf16"), Named("fp32")]
        rounds = [[records(2.0), records(1.0)], [records(4.0), records(1.0)],
                  [records(3.0), records(1.5)]]
        rows = comm.summarise(groups, rounds)
        self.assertEqual([row["collective"] for row in rows], ["all_gather", "all_reduce"])
        # bf16 takes twice as long for as many bytes; in the second round four times.
        self.assertEqual(rows[1]["fp32"]["ratio"]["median"], 0.5)
        self.assertEqual(rows[1]["fp32"]["ratio"]["min"], 0.25)
        self.assertEqual(rows[1]["share_of_memcpy"]["max"], 0.25)
        with contextlib.redirect_stdout(io.StringIO()) as out:
            comm.print_table(groups, rows)
        self.assertIn("bf16 / fp32", out.getvalue())


class Products(unittest.TestCase):
    @staticmethod
    def piece(name, flops=1e9, ours=1.0, theirs=2.0, log=None):
        def turn(side, seconds):
            if log is not None:
                log.append(side[0] + name[0])
            return seconds

        group = products.group_of(name)
        if name.startswith("attention"):
            group = name
        return products.Piece(name, group, "", flops, lambda: turn("ours", ours),
                              lambda: turn("theirs", theirs))

    def test_neighbours_change_places_every_round(self):
        log = []
        pieces = [self.piece("a, dx", log=log), self.piece("b, dw", log=log)]
        times = products.measure(pieces, 2, progress=False)
        self.assertEqual(log, ["oa", "ta", "ob", "tb", "ta", "oa", "tb", "ob"])
        self.assertEqual(times[1], {"ours": [1.0, 1.0], "theirs": [2.0, 2.0]})

    def test_pytorch_has_the_same_product(self):
        part = {"name": "linear 768 to 2304, forward", "m": 8, "n": 2304, "k": 768, "dtype": "bf16",
                "count": 12}
        task = {"m": 8, "n": 2304, "k": 768, "dtype": "bf16", "count": 12}
        self.assertEqual(products.task_of(part), {"kind": "forward", **task})
        part.update(name="linear 768 to 2304, dx", n=768, k=2304)
        self.assertEqual(products.task_of(part), {"kind": "dx", **task, "n": 768, "k": 2304})
        # Ours lies [in, out] in GPT-2, PyTorch's [out, in].
        for m, n in ((768, 2304), (2304, 768)):
            part.update(name="linear 768 to 2304, dw", m=m, n=n, k=8)
            self.assertEqual(products.task_of(part), {"kind": "dw", **task, "m": 2304, "n": 768, "k": 8})
        part.update(name="head, logits", m=4, n=99, k=768)
        self.assertEqual(products.task_of(part), {"kind": "forward", **task, "m": 4, "n": 99})
        part.update(name="head, dw", m=99, n=768, k=4)
        self.assertEqual(products.task_of(part), {"kind": "dw", **task, "m": 99, "n": 768, "k": 4})

    def test_a_group_is_the_sum_of_its_pieces(self):
        pieces = [self.piece("linear 1 to 2, forward", ours=1.0, theirs=1.0),
                  self.piece("linear 2 to 1, forward", ours=1.0, theirs=3.0, flops=3e9),
                  self.piece("head, logits", ours=2.0, theirs=1.0),
                  self.piece("attention, backward", ours=1.0, theirs=3.0)]
        rows, sums = products.summarise(pieces, products.measure(pieces, 3, progress=False))
        self.assertEqual([row["ratio"]["median"] for row in rows], [1.0, 3.0, 0.5, 3.0])
        found = {row["name"]: row["ratio"]["median"] for row in sums}
        self.assertEqual(found, {"forward": 2.0, "head": 0.5, "all products": 5 / 4,
                                 "attention, backward": 3.0})
        self.assertEqual(sums[0]["flops"], 4e9)
        with contextlib.redirect_stdout(io.StringIO()) as out:
            products.print_table(rows + sums, True)
        lines = out.getvalue().splitlines()
        self.assertEqual([line.split()[0] for line in lines if line.endswith("missed")],
                         ["head,", "attention,", "head", "attention,"])


class Adams:
    def __init__(self, name, *answers):
        self.name, self.answers = name, answers


class HostAdamW(unittest.TestCase):
    @staticmethod
    def answer(seconds, sums=(1, 0)):
        return {"seconds": [seconds], "streaming_seconds": [0.5], "copy_seconds": [1.0],
                "sums": list(sums)}

    def test_a_rate_counts_the_same_bytes_for_both(self):
        first = self.answer(100)  # Warms up.
        ours = Adams("ours", first, self.answer(1), self.answer(2))
        peer = Adams("it", first, self.answer(2), self.answer(3))
        row = host_adamw.summarise("bf16-copy", 10**9, ours, peer)
        for name, least, most in (("ours", 15, 30), ("it", 10, 15), ("ratio", 1.5, 2)):
            self.assertAlmostEqual(row[name]["min"], least)
            self.assertAlmostEqual(row[name]["max"], most)
        copied = 2 * 2**28 / 0.5 * 1e-9
        self.assertAlmostEqual(row["share"]["max"], 30 / copied)
        self.assertAlmostEqual(row["peer_share"]["min"], 10 / copied)
        self.assertAlmostEqual(row["plain_copy"]["median"], copied / 2)

    def test_other_work_is_refused(self):
        ours = Adams("ours", self.answer(1, (100.0, 50.0)))
        host_adamw.check_same_work("fp32", ours, Adams("it", self.answer(1, (100.0005, 50.0))))
        host_adamw.check_same_work("bf16", ours, Adams("it", self.answer(1, (101.0, 50.0))))
        for sums in ((100.01, 50.0), (100.0, 0.0), (float("nan"), 50.0)):
            with self.assertRaises(SystemExit):
                host_adamw.check_same_work("fp32", ours, Adams("it", self.answer(1, sums)))


class Curves(unittest.TestCase):
    @staticmethod
    def curve(loss):
        return {"steps": [loss + 1, loss], "held out": {1: loss + 0.5, 2: loss}, "skipped": 0}

    def test_differences_are_of_pairs(self):
        # Seeds are 1 apart; within a seed bf16 is 0.01 and 0.03 above, so 0.02 +- 0.01.
        base = [self.curve(2.0), self.curve(3.0)]
        mean, error = curves.difference([self.curve(2.01), self.curve(3.03)], base, 2)
        self.assertAlmostEqual(mean, 0.02)
        self.assertAlmostEqual(error, 0.01)

    def test_two_errors_decide(self):
        for mean, error, says, failed in (
                (0.005, 0.001, None, False), (-0.005, 0.001, None, False),
                (0.0125, 0.001, "from fp32", True), (-0.0125, 0.001, "from fp32", True),
                (0.011, 0.001, None, False),  # Within two errors of what is allowed.
                (0.0, 0.006, "undecided", False), (0.03, 0.006, "from fp32", True),
                (float("nan"), 0.001, "from fp32", True)):
            what, fails = curves.verdict(mean, error)
            self.assertEqual(fails, failed, (mean, error))
            self.assertEqual(what is None, says is None, (mean, error))
            if says:
                self.assertIn(says, what)

    def test_a_curve_is_read_from_records(self):
        records = [{"kind": "run"}, {"kind": "step", "step": 1, "loss": 5.5},
                   {"kind": "skipped", "step": 2}, {"kind": "step", "step": 2, "loss": 5.25},
                   {"kind": "eval", "step": 2, "loss": 5.0}]
        curve = curves.read_curve("\n".join(map(json.dumps, records)))
        self.assertEqual(curve, {"steps": [5.5, 5.25], "held out": {2: 5.0}, "skipped": 1})
        self.assertEqual(curves.last(curve), 5.0)

    def test_fp32_again_is_added_up_in_another_order(self):
        recipe = {"train": {"global_batch_size": 8}}
        self.assertEqual(curves.settings_of("fp32", recipe), [])
        self.assertEqual(curves.settings_of("fp32 again", recipe), ["train.micro_batch_size=8"])
        self.assertIn("optimizer.state_dtype=bf16", curves.settings_of("all bf16", recipe))


class ModelCurves(unittest.TestCase):
    @staticmethod
    def family(ours, theirs):
        return {side: [{"steps": [2.5], "held out": {1: 3.0, 2: loss}} for loss in losses]
                for side, losses in (("ours", ours), ("PyTorch", theirs))}

    def test_ours_may_be_worse_by_the_larger_spread(self):
        found = model_curves.summary(self.family([1.2, 1.3], [1.0, 1.1]))
        self.assertTrue(found["worse"])
        self.assertAlmostEqual(found["spread"]["ours"], 0.1)
        for ours in ([1.1, 1.3], [0.8, 0.9]):
            self.assertFalse(model_curves.summary(self.family(ours, [1.0, 1.1]))["worse"])
        self.assertTrue(model_curves.summary(self.family([float("nan")] * 2, [1.0, 1.1]))["worse"])

    def test_curves_are_read_as_they_were(self):
        families = {"vit": {"ours": [{"steps": [1.0], "held out": {400: 2.0, 1000: 1.0}}]}}
        self.assertEqual(model_curves.read_families(json.dumps(families)), families)

    def test_the_first_losses_are_compared(self):
        curves = self.family([1.0, 1.0], [1.0, 1.0])
        self.assertTrue(model_curves.first_losses_agree(curves))
        curves["PyTorch"][1]["steps"][0] = 2.501
        self.assertFalse(model_curves.first_losses_agree(curves))

    def test_spans_are_cut_as_ours(self):
        # docs/data.md: 568 tokens fill an input of 512, and make a target of 114.
        length = spans.longest_text(512, 0.15, 3)
        noise, count = spans.lengths_of(length, 0.15, 3)
        self.assertEqual((length, length - noise + count + 1, noise + count + 1), (568, 512, 114))
        # A draw of 0 cuts, as long as there is a part to come; the last part is what is left.
        self.assertEqual(spans.parts(7, 3, [0] * 7), [1, 1, 5])
        self.assertEqual(spans.parts(7, 3, [(1 << 64) - 1] * 7), [5, 1, 1])
        self.assertEqual(spans.parts(4, 1, [0] * 4), [4])


class Convolutions(unittest.TestCase):
    def test_convolutions_are_taken_from_a_trace(self):
        events = [{"name": "convolution_forward", "dur": 2e6}, {"name": "linear_forward", "dur": 1},
                  {"name": "convolution_forward", "dur": 1e6}, {"ph": "M"},
                  {"name": "convolution_backward", "dur": 5e6}]
        self.assertEqual(regnet.convolutions(events), (3, 5, 2))


class Options(unittest.TestCase):
    def test_settings_are_those_of_the_page(self):
        page = ("| `other` | 1 |\n## Memory and traffic\n\n| setting | planned |\n|---|---|\n"
                "| `fsdp.sharding_strategy=no_shard` | 3 |\n"
                "| `fsdp.sharding_strategy=full_shard` | 2 |\n\n## More\n\n| `another` | 1 |\n")
        self.assertEqual(options.settings_of(page),
                         ["fsdp.sharding_strategy=full_shard", "fsdp.sharding_strategy=no_shard",
                          *options.MORE])

    def test_the_first_step_does_not_count(self):
        records = [{"kind": "run"}] + [
            {"kind": "step", "step_time_s": 1.0,
             "time": {"communication": 1.0 / s, "forward": 9.0 / s}}
            for s in (1, 2, 4)]
        self.assertEqual(options.step_times("\n".join(map(json.dumps, records))),
                         ([5.0, 2.5], [0.5, 0.25]))

    def test_ratios_are_of_full_shard_in_the_same_round(self):
        settings = [Fake("full"), Fake("other")]
        for setting in settings:
            setting.waited = [0.5]
            setting.planned = lambda: {"memory": {"allocated_peak": 1 << 20}}
        # The second round is twice as slow for both.
        rows = options.summarise(settings, [[[1.0, 1.0], [2.0]], [[1.5], [3.0, 3.0]]])
        self.assertEqual(rows[0]["ratio"]["median"], 1.0)
        self.assertEqual((rows[1]["ratio"]["min"], rows[1]["ratio"]["max"]), (1.5, 1.5))
        with contextlib.redirect_stdout(io.StringIO()) as out:
            options.print_table(rows)
        self.assertEqual(len(out.getvalue().splitlines()), 3)

    def test_a_setting_that_spills_has_its_disk_measured(self):
        self.assertEqual(options.spill_directory("fsdp.cpu_offload={optimizer: true, spill: /a/b}"),
                         "/a/b")
        self.assertEqual(
            options.spill_directory("fsdp.cpu_offload={spill: /a, spill_ahead: 1}"), "/a")
        self.assertIsNone(options.spill_directory("train.activation_offload=spill"))
        self.assertIsNone(options.spill_directory("fsdp.cpu_offload={spill_ahead: 1}"))
        setting = Fake("spills")
        setting.planned = lambda: {"offload": {"disk_read_bytes": 3 << 20, "disk_write_bytes": 1}}
        args = types.SimpleNamespace(ranks=2, priority=False)
        self.assertEqual(options.Disk(args, setting, "/a/b").mib, 7)

    def test_lanes_are_pieces_of_work(self):
        def span(tid, name, begin, end, **args):
            return {"ph": "X", "tid": tid, "name": name, "ts": begin * 1e6,
                    "dur": (end - begin) * 1e6, "args": args}

        h0 = {"unit": "h.0", "pass": "forward", "micro_batch": 0}
        events = [{"ph": "M", "tid": i, "name": "thread_name", "args": {"name": name}}
                  for i, name in enumerate(["compute", "gather", "reduce", "data"])]
        events += [
            span(1, "all_gather", 0, 1, **h0), span(1, "all_gather", 1, 2, **h0),
            span(0, "wait", 0, 1, **h0), span(0, "linear", 1, 2, **h0),
            span(0, "wait", 2, 2.00001, **h0), span(0, "gelu", 2.00001, 3, **h0),
            span(0, "wait", 3, 4, **h0), span(0, "add", 4, 5, **h0),
            span(0, "linear", 5, 6, **{"unit": "root", "pass": "backward"}), span(0, "copy", 6, 7),
            span(3, "load", 0, 1, **h0)]
        found = options.lanes(events)
        self.assertEqual(found["gather"], [(0, 1, "h.0", "forward"), (1, 2, "h.0", "forward")])
        self.assertEqual(found["compute"],
                         [(1, 3, "h.0", "forward"), (4, 5, "h.0", "forward"), (5, 6, "root", "backward")])
        self.assertEqual(found["reduce"], [])
        self.assertEqual([options.label(unit) for unit in ("h.11", "root", None)], ["11", "R", ""])


class Predict(unittest.TestCase):
    def rows(self, *errors, wrong=()):
        return [{"name": "a", "world": 1, "floor_s": 0.5, "predicted_s": 1.0, "measured_s": 1.0,
                 "slowest_s": 2.0, "error": error, "wrong": list(wrong)} for error in errors]

    def test_the_verdict_is_of_median_worst_and_bytes(self):
        self.assertTrue(predict.verdict(self.rows(0.05, -0.09, 0.2))[1])
        self.assertFalse(predict.verdict(self.rows(0.11, -0.12, 0.0))[1])
        self.assertFalse(predict.verdict(self.rows(0.01, -0.21, 0.0))[1])
        self.assertFalse(predict.verdict(self.rows(0.0, wrong=["memory: 1 planned, 2 used"]))[1])
        self.assertIn("memory: 1 planned", predict.table(self.rows(0.0, wrong=["memory: 1 planned"]))[1])

    def test_named_recipes_take_the_place_of_the_eight(self):
        written = types.SimpleNamespace(write=lambda name, world, content, steps: (name, steps))
        self.assertEqual([(world, path) for world, path, _ in
                          predict.recipes_of(written, [], [], 5).values()],
                         [(world, (name, 5)) for name, world, _ in predict.RECIPES])
        found = predict.recipes_of(written, [predict.pathlib.Path("/a/b.yaml")], ["x.y=1"], 7)
        self.assertEqual(list(found), ["b, x.y=1"])
        world, path, flags = found["b, x.y=1"]
        self.assertEqual((world, str(path), flags[:2]), (1, "/a/b.yaml", ["--set", "x.y=1"]))
        self.assertIn("train.steps=7", flags)
        self.assertEqual(flags[::2], ["--set"] * (len(flags) // 2))

    def test_bytes_have_to_be_equal(self):
        said = {"communication": {"all_gather_bytes": 8, "exposed_s": 0.1},
                "memory": {"allocated_peak": 100}}
        step = {"communication": {"all_gather_bytes": 8, "network_bytes": 8},
                "memory": {"allocated_peak": 100}}
        self.assertEqual(predict.differences(said, step), [])
        step["communication"]["all_gather_bytes"] = 9
        step["memory"]["allocated_peak"] = 101
        self.assertEqual(predict.differences(said, step),
                         ["all_gather_bytes: 8 said, 9 sent", "memory: 100 planned, 101 used"])

    def test_turns_are_reversed_and_first_steps_skipped(self):
        order = []
        times = predict.by_turns(2, ["a", "b"], lambda name: order.append(name) or len(order))
        self.assertEqual((order, times), (["a", "b", "b", "a"], {"a": [1, 4], "b": [2, 3]}))
        steps = [{"step_time_s": seconds} for seconds in (9, 9, 1, 3, 2)]
        self.assertEqual(predict.seconds_of(steps), 2)

    def test_the_first_proposal_is_taken(self):
        self.assertEqual(predict.proposed('{"best": [{"set": ["a=1", "b=2"]}, {"set": []}]}'),
                         ["--set", "a=1", "--set", "b=2"])


if __name__ == "__main__":
    unittest.main()
