#!/usr/bin/env python3
"""tools/gpu/kit over the program with an emulated GPU: every part, killed, cut off, and wrong."""

import json
import os
import pathlib
import shutil
import signal
import stat
import statistics
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = pathlib.Path(os.getcwd())  # The root of the repository, where Bazel starts a test.
KIT = ROOT / "tools/gpu/kit"
PROGRAM = ROOT / "tests/emulated/fsdp-train"
TESTS = ROOT / "tests/trainer/ops/gpu_op_tests_emulated"
TORCH = ROOT / "tests/tools/stand_in_for_torch.py"
TAKEN = 1234.5678  # Seconds of a step that nobody has timed.


def alive(pid):
    """A process that has ended and waits for its parent is not alive."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def load_tests(_loader, suites, _pattern):
    """This shard's, where Bazel runs several."""
    status = os.environ.get("TEST_SHARD_STATUS_FILE")
    if status:
        pathlib.Path(status).touch()
    cases = [case for suite in suites for case in suite]
    index, count = (int(os.environ.get(name, default)) for name, default in
                    (("TEST_SHARD_INDEX", "0"), ("TEST_TOTAL_SHARDS", "1")))
    for name in [name for name in os.environ if "_SHARD" in name]:
        del os.environ[name]  # Or the kit's programs would take a share of their tests as well.
    return unittest.TestSuite(cases[index::count])


class KitTest(unittest.TestCase):
    def setUp(self):
        self.scratch = tempfile.TemporaryDirectory()
        self.addCleanup(self.scratch.cleanup)
        self.directory = pathlib.Path(self.scratch.name)
        self.out = self.directory / "out"
        # The kit's clock, which jumps by what is in `jump`: no limit depends on the machine's load.
        clock = self.directory / "clock"
        clock.mkdir()
        (clock / "sitecustomize.py").write_text(
            "import pathlib, time\n"
            f"jump, real = pathlib.Path({str(self.directory / 'jump')!r}), time.monotonic\n"
            "time.monotonic = lambda: real() + (float(jump.read_text()) if jump.exists() else 0)\n")

    def later(self, jump):
        """Commands of a wrapper: the clock has jumped, and the file is whole whenever the kit reads it."""
        new, jumped = self.directory / "jump.new", self.directory / "jump"
        return f"{{ echo {jump} >{new}; mv {new} {jumped}; }}"

    def hangs(self, jump):
        """Lines of a wrapper: so many seconds pass, and it never ends. The output wakes the kit."""
        return f"{self.later(jump)}; echo later >&2; exec sleep 1000\n"

    def command(self, *arguments, program=PROGRAM, tests=TESTS, small=True):
        return [KIT, "run", *(["--small"] if small else []), "--program", program, "--tests", tests,
                "--python", TORCH, "--out", self.out, *arguments]

    def run_kit(self, *arguments, environment=None, **options):
        # Nothing but what a shell script needs, and no compute-sanitizer of this machine.
        environment = {**os.environ, "PATH": f"{self.directory}:/usr/bin:/bin",
                       "PYTHONPATH": str(self.directory / "clock"), "PROGRAM": str(PROGRAM),
                       **(environment or {})}
        result = subprocess.run(self.command(*arguments, **options), capture_output=True, text=True,
                                check=False, env=environment)
        self.assertEqual(result.stderr, "")
        return result.returncode, result.stdout

    def rows(self):
        parts = json.loads((self.out / "result.json").read_text())["parts"]
        return {name: part["rows"] for name, part in parts.items()}

    def wrapper(self, text, name="program"):
        path = self.directory / name
        path.write_text("#!/bin/bash\n" + text)
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return path

    def test_every_part(self):
        self.sanitizer()
        self.nvidia_smi()
        code, out = self.run_kit()
        self.assertEqual(code, 1, out)  # One GPU: what wants two is refused, and not fine.
        listed = subprocess.run([KIT, "parts"], capture_output=True, text=True, check=True).stdout
        names = [line.split()[0] for line in listed.splitlines()]
        self.assertEqual(list(self.rows()), names)
        self.assertGreaterEqual(len(names), 14)
        for name, rows in self.rows().items():
            status = [one["status"] for one in rows]
            self.assertEqual(status, ["ok"] * (len(rows) - (name == "nccl")) +
                             ["refused"] * (name == "nccl"), name)
        self.assertEqual(len(self.rows()["losses"]), 9)
        self.assertEqual([one["name"] for one in self.rows()["peers"]],
                         ["tiny eager", "tiny compile", "tiny losses"])
        losses = self.rows()["peers"][2]["numbers"]
        self.assertEqual([len(losses[side]) for side in ("ours", "theirs")], [4, 4])
        self.assertLess(losses["loss"], 1e-3)
        self.assertNotEqual(losses["ours"][0], losses["ours"][3])
        for one in self.rows()["peers"][:2]:
            numbers = one["numbers"]
            self.assertLess(numbers["loss"], 1e-3)
            self.assertEqual(len(numbers["ratios"]), 2)
            self.assertEqual([len(turn) for turn in numbers["seconds"][0]], [8, 8])
            for ratio, turn in zip(numbers["ratios"], numbers["seconds"][0]):
                self.assertEqual(ratio, 0.5 / statistics.median(turn))
        self.assertEqual([one["name"] for one in self.rows()["images"]],
                         ["vit-base eager", "vit-base compile"])
        for one in self.rows()["images"]:
            for ratio, turn in zip(one["numbers"]["ratios"], one["numbers"]["seconds"][0],
                                   strict=True):
                self.assertEqual(ratio, 0.25 / statistics.median(turn))
        self.assertEqual([one["name"] for one in self.rows()["nccl"]],
                         ["collectives, one rank", "collectives, one rank, deterministic", "two ranks"])
        for one in self.rows()["memory"]:
            self.assertEqual(one["numbers"]["taken"], one["numbers"]["plan"])
            self.assertGreater(one["numbers"]["outside"], 0)
        self.assertEqual([one["text"] for one in self.rows()["sanitizer"]][2:4],
                         ["ERROR SUMMARY: 0 errors",
                          "RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)"])
        tests = self.rows()["op_tests"]
        self.assertEqual([one["name"] for one in tests],
                         ["CastTest", "LoraTest", "LoraTest, cublaslt", "LoraTest, cublaslt-deterministic",
                          "RopeTest"])
        self.assertGreater(sum(one["numbers"]["tests"] for one in tests), 20)
        step, products, clock = self.rows()["steps"]
        self.assertEqual(products["text"], "all are by cuBLASLt")
        self.assertEqual((clock["numbers"]["mhz"], clock["numbers"]["most"]), (1755, 1980))
        self.assertEqual(clock["text"], "1755 MHz in the middle, 1200 to 1980, of 1980")
        self.assertEqual({one["gpu"] for rows in self.rows().values() for one in rows}, {"Grey Box"})
        self.assertEqual([one["name"] for one in self.rows()["runtime"]],
                         ["GpuQueue", "StreamSuite", "CheckedStreamSuite", "BufferSuite",
                          "StreamFailureSuite", "GoingOnSuite"])
        few, more = self.rows()["offload"][-2:]
        self.assertGreater(few["numbers"]["seconds"], 0)
        self.assertGreater(more["numbers"]["tokens_per_s"], 0)
        self.check_predictions({f"{part} {one['name']}": one["numbers"]["seconds"]
                                for part in ("steps", "offload") for one in self.rows()[part]
                                if "seconds" in one["numbers"]})
        self.assertEqual(sorted(step["numbers"]["rates"]),
                         ["attention_backward_flops", "attention_forward_flops", "copy_bytes_per_s",
                          "fp32_flops"])
        self.assertGreater(min(step["numbers"]["rates"].values()), 0)
        self.assertGreater(step["numbers"]["floor"], 0)
        copy, gemm, cudnn, flash = self.rows()["ceilings"]
        self.assertEqual(copy["numbers"]["gb_per_s"], 2 * 65536 / 1e-3 * 1e-9)
        self.assertGreater(gemm["numbers"]["ours"], 0)
        self.assertEqual((cudnn["name"], flash["name"]), ("attention tiny cudnn", "attention tiny flash"))
        self.assertEqual(cudnn["numbers"], flash["numbers"])
        self.assertLessEqual(len((self.out / "summary.txt").read_text().splitlines()), 60)

    def check_predictions(self, measured):
        """The rows of `predict` that are fine are of these steps, which took so many seconds."""
        hardware, *rows, median = [one for one in self.rows()["predict"] if one["status"] == "ok"]
        self.assertEqual({one["name"]: one["numbers"]["measured"] for one in rows}, measured)
        for one in rows:
            numbers = one["numbers"]
            self.assertGreater(numbers["predicted"], 0)
            self.assertEqual(numbers["error"], numbers["predicted"] / numbers["measured"] - 1)
            self.assertEqual(one["text"], f"predicted {numbers['predicted']:.4g} s, measured "
                             f"{numbers['measured']:.4g} s, error {numbers['error']:+.1%}")
        errors = [abs(one["numbers"]["error"]) for one in rows]
        self.assertEqual((median["name"], median["numbers"]["steps"]), ("median", len(rows)))
        self.assertEqual(median["numbers"]["median"], statistics.median(errors))
        self.assertEqual(median["numbers"]["largest"], max(errors))
        return hardware["numbers"]["hardware"]

    def predict(self, **changes):
        """The part, behind others whose rows are made up: part -> name -> numbers. `calibrate` leaves what
        it reads in calibrated_on.json, `simulate` its arguments in the lines of simulated."""
        program = self.wrapper(f'[ "$1" != calibrate ] || cp "$3" {self.directory}/calibrated_on.json\n'
                               f'[ "$1" != simulate ] || echo "$@" >>{self.directory}/simulated\n'
                               f'exec {PROGRAM} "$@"\n')
        ops = {"copy_gb_per_s": 2.0, "shapes": {"batch": 1, "seq": 8, "hidden": 16, "intermediate": 24,
                                                "heads": 2, "vocab": 40},
               "ops": [{"name": name, "flops": 1, "bytes": 1, "seconds": 1e-3}
                       for name in ("attention, forward", "attention, backward", "rope")]}
        taken = {"seconds": TAKEN}
        rows = {"steps": {"tiny": taken, "tiny, products": {}},
                "products": {"tiny": {"parts": [{"dtype": "fp32", "flops": 3e12, "seconds": 2.0}]}},
                "ops": {dtype: {"dtype": dtype, **ops} for dtype in ("bf16", "fp32")},
                "offload": {"tiny, optimizer": taken, "tiny, half of it": taken,
                            "qwen2.5-14b, 2 micro-batches": taken}, **changes}
        self.run_kit("devices", program=program)
        self.make_up(rows)
        code, out = self.run_kit("predict", program=program)
        self.assertEqual(code, 1, out)  # Some step of `offload` is not there.
        return self.rows()["predict"]

    def make_up(self, rows):
        """Adds parts to what the kit has done: part -> name -> numbers. `predict` is not done."""
        state = self.out / "state.json"
        whole = json.loads(state.read_text())
        for part, numbers in rows.items():
            whole["parts"][part] = {"done": True, "seconds": 0, "rows": [
                {"name": name, "status": "ok", "text": "", "numbers": one, "gpu": ""}
                for name, one in numbers.items()]}
        whole["parts"].pop("predict", None)
        state.write_text(json.dumps(whole))

    def test_every_size_of_a_gpu_is_predicted(self):
        ops = ["linear up, forward", "linear up, backward", "linear down and residual, forward",
               "attention, forward", "attention, backward", "head and loss"]
        timed = ", ".join(f'{{\\"name\\": \\"{name}\\", \\"flops\\": 1, \\"bytes\\": 1, '
                          '\\"seconds\\": 1e-3, \\"share_of_limit\\": 1}' for name in ops)
        # Times no op, and copies little; this machine may have less memory than 14B wants.
        program = self.wrapper(
            f'if [ "$1" = calibrate ]; then\n  {PROGRAM} "$@" --small --rounds 1 &&'
            f' exec sed -i /host_memory/d "$6"\nfi\n'
            f'[ "$1 $2" = "bench ops" ] || exec {PROGRAM} "$@"\n'
            'while [ $# -gt 0 ]; do case $1 in --dtype) dtype=$2 ;;\n'
            '--batch|--seq|--heads|--hidden|--intermediate|--vocab) sizes+=", \\"${1#--}\\": $2" ;;\n'
            'esac; shift; done\n'
            'echo "{\\"dtype\\": \\"$dtype\\", \\"gemm_gflops\\": 1, \\"copy_gb_per_s\\": 3000, '
            f'\\"shapes\\": {{${{sizes#, }}}}, \\"ops\\": [{timed}]}}"\n')
        code, out = self.run_kit("devices", "ops", program=program, small=False)
        self.assertEqual(code, 0, out)
        sizes = [f"qwen2.5-{size}b" for size in ("0.5", "1.5", "3", "7")]
        large = "qwen2.5-14b"
        self.assertEqual({one["name"]: one["numbers"]["shapes"]["hidden"] for one in self.rows()["ops"]},
                         {"bf16": 896, "fp32": 896, f"bf16, {sizes[1]}": 1536, f"bf16, {sizes[2]}": 2048,
                          f"bf16, {sizes[3]}": 3584, f"bf16, {large}": 5120,
                          "bf16, convolutions by our kernels": 896})
        steps = {"steps": sizes, "offload": [f"{size}, {place}" for size in sizes[:2] for place in
                                             ("optimizer", "half of it", "parameters")] +
                 [f"{large}, {n} micro-batches" for n in (2, 6)]}
        parts = [{"dtype": "bf16", "flops": 7e14, "seconds": 1.0}]
        self.make_up({"products": {size: {"parts": parts} for size in sizes},
                      **{part: {name: {"seconds": TAKEN} for name in names}
                         for part, names in steps.items()}})
        code, out = self.run_kit("predict", program=program, small=False)
        self.assertEqual(code, 1, out)
        hardware, *rows, median = self.rows()["predict"]
        self.assertEqual([hardware["status"], median["status"]], ["ok", "FAILED"])
        self.assertEqual([one["name"] for one in rows],
                         [f"{part} {name}" for part, names in steps.items() for name in names])
        # Nothing here takes as long as that.
        self.assertEqual({one["status"] for one in rows}, {"FAILED"}, out)
        predicted = [one["numbers"]["predicted"] for one in rows]
        self.assertGreater(min(predicted), 0)
        self.assertLess(predicted[-2], predicted[-1])  # 2 and 6 micro-batches.

    def test_predictions_know_products_ops_and_copies_alone(self):
        self.assertEqual({one["name"]: one["text"] for one in self.predict() if one["status"] != "ok"},
                         {f"offload {name}": f"offload {name} is not fine, or not there" for name in
                          ("tiny, parameters", "qwen2.5-14b, 6 micro-batches")})
        hardware = self.check_predictions(
            {name: TAKEN for name in ("steps tiny", "offload tiny, optimizer", "offload tiny, half of it",
                                      "offload qwen2.5-14b, 2 micro-batches")})
        self.assertIn(f"ok      predict median: {self.rows()['predict'][-1]['text']}",
                      (self.out / "summary.txt").read_text())
        read = (self.directory / "calibrated_on.json").read_text()
        self.assertEqual(list(json.loads(read)["parts"]), ["devices", "products", "ops"])
        calls = (self.directory / "simulated").read_text()
        for text in (read, hardware, calls):
            self.assertNotIn(str(TAKEN), text)
        self.assertRegex(hardware, r'(?m)^name: "Emulated GPU"$')
        self.assertRegex(hardware, r"(?m)^fp32_flops: 1\.5e\+?12$")
        self.assertRegex(hardware, r'(?m)^  "rope, bf16": ')
        for key in ("memory", "copy_bytes_per_s", "launch_s", "host_link_bytes_per_s",
                    "host_copy_bytes_per_s", "  operation_s"):
            self.assertRegex(hardware, f"(?m)^{key}: [0-9]")
        # As they were run, but for their directory.
        self.assertEqual(len(calls.splitlines()), 4)
        self.assertRegex(calls.splitlines()[1],
                         "train={steps: 3.*cpu_offload={optimizer: true} --world-size 1 ")

    def test_predictions_need_the_rows_of_other_parts(self):
        for changes, why in (({"products": {}}, "products tiny is not fine, or not there"),
                             ({"ops": {}}, "ops bf16 is not fine, or not there")):
            rows = self.predict(**changes)
            self.assertEqual({one["status"] for one in rows}, {"refused"})
            self.assertEqual((rows[0]["text"], rows[-1]["text"]), (why, "nothing was predicted"))
        self.nvidia_smi()
        rows = self.predict()
        self.assertEqual({one["status"] for one in rows}, {"refused"})
        self.assertIn("products tiny is of another GPU, ", rows[0]["text"])

    def test_a_prediction_is_within_a_tenth(self):
        sys.path.insert(0, str(KIT.parent))
        import predict_parts  # Beside the kit, and nowhere else.
        made = predict_parts.prediction
        for predicted, status in ((1.09, "ok"), (0.91, "ok"), (1.11, "FAILED"), (0.89, "FAILED")):
            self.assertEqual(made(2 * predicted, 2.0)["status"], status)
        rows = [{"name": str(seconds), **made(seconds, 1.0)} for seconds in (1.05, 0.6, 1.01)]
        closed = predict_parts.closing([{"name": "hardware file", "numbers": {}}, *rows])
        self.assertEqual(closed["status"], "ok")
        self.assertEqual(closed["text"], "error 5.0% in the median of 3 steps, at most 40.0%: 0.6")
        self.assertEqual(predict_parts.closing(rows[1:2])["status"], "FAILED")

    def nvidia_smi(self, name="Grey Box"):
        self.wrapper(f'case "$1 $3" in\n"--query-gpu=name --id=0") echo "{name}" ;;\n'
                     '"--query-gpu=clocks.sm,clocks.max.sm --id=0")\n'
                     '  for mhz in 1200 1755 1980; do echo "$mhz, 1980"; done; exec sleep 1000 ;;\n'
                     '*) exit 6 ;;\nesac\n', "nvidia-smi")

    def test_goes_on_on_another_machine(self):
        state = self.directory / "kept.json"
        for name, part in (("One", "devices"), ("Another", "memory")):
            self.nvidia_smi(name)
            code, out = self.run_kit("devices", part, "--state", state)
            self.assertEqual(code, 0, out)
            shutil.rmtree(self.out) if name == "One" else None
        self.assertEqual({name: {one["gpu"] for one in rows} for name, rows in self.rows().items()},
                         {"devices": {"One"}, "memory": {"Another"}})
        self.assertIn("not all on one GPU: Another; One", out)
        self.assertNotIn("kit: devices:", out)
        self.assertFalse((self.out / "state.json").exists())

    def test_products_that_cublaslt_refuses_are_a_failure(self):
        refuses = self.wrapper(f'if [ "$1" != --config ]; then exec {PROGRAM} "$@"; fi\n'
                               f'FSDP_TRAIN_EMULATED_GPUS=cublaslt_refuses=3 exec {PROGRAM} "$@"\n')
        code, out = self.run_kit("steps", program=refuses)
        self.assertEqual(code, 1, out)
        step, products, clock = self.rows()["steps"]
        self.assertEqual([one["status"] for one in (step, products, clock)], ["ok", "FAILED", "refused"])
        self.assertRegex(products["text"], "^1 are not by cuBLASLt: .*not supported")

    def test_a_full_queue_that_hangs_is_named(self):
        tests = self.wrapper('[[ "$*" != *GpuQueue*json* ]] || {\n'
                             '  echo "not within 60 s: x" >&2; exit 1\n}\n'
                             f'exec {TESTS} "$@"\n', "tests")
        code, out = self.run_kit("runtime", tests=tests)
        self.assertEqual(code, 1, out)
        self.assertEqual([one["status"] for one in self.rows()["runtime"]], ["FAILED"] + ["ok"] * 5)
        self.assertIn("exit 1: not within 60 s: x", self.rows()["runtime"][0]["text"])

    def sanitizer(self, memcheck="ERROR SUMMARY: 0 errors", code=None,
                  racecheck="RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)"):
        """A compute-sanitizer that says this in its log, whatever the program says: with a code of its
        own it does not even run it."""
        self.wrapper('[ "$3 $4 $5" == "--error-exitcode 99 --log-file" ] || exit 98\n'
                     'tool=$2; log=$6; shift 6\n'
                     '[ "$1 $2" == "--kernel-name kernel_substring=4fsdp" ] || exit 98; shift 2\n'
                     'if [ $tool = memcheck ]; then\n'
                     '  [ "$1 $2" == "--report-api-errors no" ] || exit 98; shift 2\nfi\n' +
                     ('"$@"; code=$?\n' if code is None else f'code={code}\n') +
                     'echo "========= COMPUTE-SANITIZER" >$log\n'
                     f'[ $tool != memcheck ] || echo "========= {memcheck}" >>$log\n'
                     f'[ $tool != racecheck ] || echo "========= {racecheck}" >>$log\n'
                     'exit $code\n', "compute-sanitizer")

    def test_a_sanitizer_has_the_last_word(self):
        for memcheck, racecheck, code, status in (
                ("", "", 0, ["FAILED"] * 4),
                ("ERROR SUMMARY: 1 error", "RACECHECK SUMMARY: 2 hazards displayed (0 errors, "
                 "2 warnings)", 0, ["FAILED"] * 4),
                ("ERROR SUMMARY: 0 errors", "", 0, ["ok"] * 3 + ["FAILED"]),
                ("ERROR SUMMARY: 0 errors", "RACECHECK SUMMARY: 0 hazards displayed", 99,
                 ["FAILED"] * 4)):
            self.sanitizer(memcheck, code, racecheck)
            self.assertEqual(self.run_kit("sanitizer", "races")[0], 1)
            rows = self.rows()
            self.assertEqual([one["status"] for one in rows["sanitizer"]], status)
            self.assertEqual({one["status"] for one in rows["races"]}, {status[-1]})
            (self.out / "state.json").unlink()

    def test_two_gpus_have_nccl(self):
        two = {"FSDP_TRAIN_EMULATED_GPUS": "count=2"}
        code, out = self.run_kit("nccl", environment=two)
        self.assertEqual(code, 0, out)
        self.assertEqual(len(self.rows()["nccl"]), 8)
        (self.out / "state.json").unlink()
        code, out = self.run_kit("nccl", environment={"FSDP_TRAIN_EMULATED_GPUS": "count=2 nccl=0"})
        self.assertEqual(code, 1, out)
        self.assertEqual({one["status"] for one in self.rows()["nccl"]}, {"crashed"})

    def test_ranks_share_one_gpu_of_two(self):
        code, out = self.run_kit("ranks", environment={"FSDP_TRAIN_EMULATED_GPUS": "count=2 nccl=0"})
        self.assertEqual(code, 0, out)
        self.assertEqual(len(self.rows()["ranks"]), 6)

    def test_memory_that_nobody_planned_is_a_failure(self):
        more = self.wrapper(f'export FSDP_TRAIN_EMULATED_GPUS=unplanned=5000000\n'
                            f'exec {PROGRAM} "$@"\n')
        code, out = self.run_kit("memory", program=more)
        self.assertEqual(code, 1, out)
        self.assertEqual({one["status"] for one in self.rows()["memory"]}, {"FAILED"})

    def test_goes_on_where_it_was_killed(self):
        held = self.wrapper(f'[ "$1" = devices ] || [ -e {self.directory}/go ] || exec sleep 1000\n'
                            f'exec {PROGRAM} "$@"\n')
        process = subprocess.Popen(self.command("devices", "memory", program=held),
                                   stdout=subprocess.PIPE, text=True, start_new_session=True)
        state = self.out / "state.json"
        while not (state.exists() and json.loads(state.read_text())["parts"]["devices"]["done"]):
            self.assertIsNone(process.poll())
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGKILL)
        first = process.communicate()[0]
        self.assertIn("kit: devices: ", first)
        (self.directory / "go").write_text("")
        code, out = self.run_kit("devices", "memory", program=held)
        self.assertEqual(code, 0, out)
        self.assertNotIn("kit: devices: ", out)
        self.assertEqual(list(self.rows()), ["devices", "memory"])

    def test_what_the_machine_refuses_is_not_fine(self):
        code, out = self.run_kit("sanitizer")
        self.assertEqual(code, 1, out)
        self.assertEqual({one["status"] for one in self.rows()["sanitizer"]}, {"refused"})

    def test_goes_on_row_by_row_when_its_time_is_over(self):
        # The second row begins so late that the call's time ends before its own.
        slow = self.wrapper(f'[ -e {self.directory}/jump ] || {self.later(100)}\n'
                            f'[[ "$*" != *"--device cuda"* ]] || echo x >>{self.directory}/gpu_runs\n'
                            f'[[ "$*" != *bf16*"--device cuda"* && "$*" != *"--device cuda"*bf16* ]] ||'
                            f' [ -e {self.directory}/go ] || {{\n{self.hangs(500)}}}\n'
                            f'exec {PROGRAM} "$@"\n')
        code, out = self.run_kit("devices", "losses", "--row-seconds", "480",
                                 program=slow)
        self.assertEqual(code, 75, out)
        self.assertIn("called again it goes on", out)
        self.assertIn("not yet: losses", out)
        self.assertEqual(len(self.rows()["losses"]), 1)
        (self.directory / "go").write_text("")
        code, out = self.run_kit("devices", "losses", program=slow)
        self.assertEqual(code, 0, out)
        self.assertEqual(len(self.rows()["losses"]), 9)
        # One that was cut off is the only one that ran twice.
        self.assertEqual((self.directory / "gpu_runs").read_text().count("x"), 10)

    def test_a_row_that_never_ends_is_a_failure(self):
        stuck = self.wrapper(f'[[ "$*" != *gpt2* ]] || {{\necho first; echo in it\n{self.hangs(250)}}}\n'
                             f'exec {PROGRAM} "$@"\n')
        code, out = self.run_kit("memory", program=stuck)
        self.assertEqual(code, 1, out)
        self.assertEqual([one["status"] for one in self.rows()["memory"]], ["FAILED", "ok", "ok"])
        self.assertIn("took longer than 240 s: in it", self.rows()["memory"][0]["text"])
        self.assertRegex("\n".join(self.rows()["memory"][0]["numbers"]["threads"]),
                         r"(?m)^\d+/\d+ .+/.+: \S+, call \S+$")

    def test_a_part_that_never_ends_is_a_failure(self):
        code, out = self.run_kit("devices", "--seconds", "200",
                                 program=self.wrapper(self.hangs(195)))
        self.assertEqual(code, 1, out)
        self.assertEqual([one["status"] for one in self.rows()["devices"]], ["FAILED"])

    def test_tests_that_hang_say_where(self):
        stuck = self.wrapper('[[ "$*" != *=Gpu/StreamSuite* ]] || {\n'
                             "trap 'echo \"tests(+0x1a2b) [0x1]\" >&2; exit 143' TERM\n"
                             f'echo one; {self.hangs(250).replace("exec sleep 1000", "sleep 1000 & wait")}}}\n'
                             f'exec {TESTS} "$@"\n', "tests")
        code, out = self.run_kit("runtime", tests=stuck)
        self.assertEqual(code, 1, out)
        self.assertIn("took longer than 240 s: one; it stood at +0x1a2b",
                      [one["text"] for one in self.rows()["runtime"]])

    def test_sigterm_ends_tests_with_a_stack(self):
        process = subprocess.Popen([TESTS, "--gtest_filter=*Cast*", "--gtest_repeat=-1"], text=True,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.assertTrue(process.stdout.readline())
        process.terminate()  # Before its output has no reader, which would end it without a word.
        self.assertRegex(process.stderr.read(), r"gpu_op_tests_emulated\(\+0x\w+\)")
        process.stdout.close()
        process.stderr.close()
        self.assertEqual(process.wait(), 128 + signal.SIGTERM)

    def test_nothing_outlives_its_row(self):
        keeps = self.wrapper(f'setsid bash -c "echo \\$\\$ >>{self.directory}/pids; exec sleep 1000" &\n'
                             f'until [ -s {self.directory}/pids ]; do sleep 0.01; done\n'
                             f'{self.hangs(250)}')
        code, out = self.run_kit("devices", program=keeps)
        self.assertEqual(code, 1, out)
        pid = (self.directory / "pids").read_text().strip()
        self.assertFalse(alive(pid), pid)

    def test_nothing_outlives_the_kit(self):
        stays = self.wrapper(f"echo $$ >{self.directory}/pid\nexec sleep 1000\n")
        process = subprocess.Popen(self.command("devices", program=stays), stdout=subprocess.DEVNULL)
        pid = self.directory / "pid"
        while not (pid.exists() and pid.read_text()):
            self.assertIsNone(process.poll())
            time.sleep(0.01)
        process.kill()
        process.wait()
        deadline = time.monotonic() + 100
        while alive(pid.read_text().strip()):
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.01)

    def test_another_program_begins_anew(self):
        self.assertEqual(self.run_kit("devices")[0], 0)
        self.assertNotIn("kit: devices:", self.run_kit("devices")[1])
        code, out = self.run_kit("devices", program=self.wrapper(f'exec {PROGRAM} "$@"\n'))
        self.assertEqual(code, 0)
        self.assertIn("begins anew", out)
        self.assertIn("kit: devices:", out)

    def test_other_losses_are_a_failure_and_come_first(self):
        other = self.wrapper(f'case "$*" in *"--device cuda"*) set -- "$@" --set run.seed=9 ;; esac\n'
                             f'exec {PROGRAM} "$@"\n')
        code, out = self.run_kit("devices", "losses", program=other)
        self.assertEqual(code, 1, out)
        self.assertEqual({one["status"] for one in self.rows()["losses"]}, {"FAILED"})
        summary = (self.out / "summary.txt").read_text().splitlines()
        self.assertTrue(summary[0].startswith(("FAILED", "crashed")), summary)
        self.assertTrue(summary[-1].startswith("ok"), summary)

    def test_a_part_that_crashes_is_a_row(self):
        broken = self.wrapper(f'[ "$1" != plan ] || {{ echo no >&2; exit 3; }}\nexec {PROGRAM} "$@"\n')
        code, out = self.run_kit("memory", "devices", program=broken)
        self.assertEqual(code, 1, out)
        self.assertEqual([one["status"] for one in self.rows()["memory"]], ["crashed"] * 3)
        self.assertIn("exit 3: no", self.rows()["memory"][0]["text"])
        self.assertEqual({one["status"] for one in self.rows()["devices"]}, {"ok"})

    def op_tests(self, how):
        """The row of RopeTest, some of whose tests do what the test says; CastTest is fine."""
        tests = self.wrapper(f'filter=${{1#*=}}; report=${{2#*json:}}\n'
                             f'[[ "$*" != *Rope*json* ]] || {{\n{how}\n}}\nexec {TESTS} "$@"\n', "tests")
        code, out = self.run_kit("op_tests", tests=tests)
        self.assertEqual(code, 1, out)
        cast, *_, rope = self.rows()["op_tests"]
        self.assertEqual((cast["status"], rope["status"]), ("ok", "FAILED"))
        return rope

    def test_what_is_skipped_has_not_passed(self):
        skips = {"name": "Skips", "result": "SKIPPED"}
        report = json.dumps({"testsuites": [{"testsuite": [skips] * 24}]})
        rope = self.op_tests(f"echo '{report}' >$report; exit 0")
        self.assertEqual(rope["text"], "24 of 24 failed: Skips: skipped")
        rope = self.op_tests("echo '{\"testsuites\": []}' >$report; exit 0")
        self.assertEqual(rope["text"], "1 of 24 failed: 0 were run")
        self.assertEqual(self.run_kit("op_tests", tests=self.wrapper("exit 0\n", "tests"))[0], 1)
        self.assertIn("there are no tests", self.rows()["op_tests"][0]["text"])

    def test_products_of_ours_are_not_cublaslts(self):
        ours = self.wrapper(f'unset FSDP_TRAIN_TEST_PRODUCTS\nexec {TESTS} "$@"\n', "tests")
        code, out = self.run_kit("op_tests", tests=ours)
        self.assertEqual(code, 1, out)
        self.assertEqual([one["status"] for one in self.rows()["op_tests"]],
                         ["ok", "ok", "FAILED", "FAILED", "ok"])
        self.assertIn("none was by cuBLASLt", out)

    def test_a_test_that_ends_the_program_is_named(self):
        rope = self.op_tests("[[ $filter != *.Refuses*fp32 && $filter != *'.*' ]] || kill -SEGV $$")
        self.assertEqual(len(rope["numbers"]["failed"]), 1, rope)
        self.assertRegex(rope["text"], "^1 of 24 failed: Refuses.*_fp32: signal 11")
        rope = self.op_tests("[[ $filter != *'.*' ]] || exit 3")
        self.assertEqual(rope["text"], "1 of 24 failed: together, and none alone")

    def test_a_test_that_fails_says_why(self):
        differs = {"name": "Differs", "result": "COMPLETED",
                   "failures": [{"failure": "a.cc:3\n1, want 2"}]}
        report = json.dumps({"testsuites": [{"testsuite": [differs]}]})
        rope = self.op_tests(f"echo '{report}' >$report; exit 1")
        self.assertEqual(rope["text"], "24 of 24 failed: Differs: a.cc:3 1, want 2")
        self.assertEqual(rope["numbers"]["failed"][8].split()[1:], ["not", "tried"])

    def test_peers_that_differ_or_end(self):
        code, out = self.run_kit("peers", environment={"NO_COMPILE": "1"})
        self.assertEqual(code, 1, out)
        eager, compiled, losses = self.rows()["peers"]
        self.assertEqual([one["status"] for one in (eager, compiled, losses)],
                         ["ok", "crashed", "crashed"])
        self.assertIn("CompilationError: no", compiled["text"])
        (self.out / "state.json").unlink()
        code, out = self.run_kit("peers", environment={"OTHER": "1"})
        self.assertEqual(code, 1, out)
        self.assertEqual([one["status"] for one in self.rows()["peers"]], ["FAILED"] * 3)

    def test_without_torch_what_needs_it_is_refused(self):
        code, out = self.run_kit("ceilings", "peers", environment={"NO_TORCH": "1"})
        self.assertEqual(code, 1, out)
        for part in ("ceilings", "peers"):
            for one in self.rows()[part]:
                self.assertEqual(one["status"], "refused", one)
                self.assertIn("No module named 'torch'", one["text"])
        self.assertIn("ours copies", self.rows()["ceilings"][0]["text"])

    def test_without_a_gpu_nothing_passes(self):
        none = self.wrapper(f'export FSDP_TRAIN_EMULATED_GPUS=count=0\nexec {PROGRAM} "$@"\n')
        tests = self.wrapper(f'export FSDP_TRAIN_EMULATED_GPUS=count=0\nexec {TESTS} "$@"\n', "tests")
        code, _ = self.run_kit(program=none, tests=tests)
        self.assertEqual(code, 1)
        for name, rows in self.rows().items():
            bad = [one for one in rows if one["status"] in ("FAILED", "crashed", "refused")]
            self.assertTrue(bad, name)

    def test_wrong_calls(self):
        result = subprocess.run(self.command("nonsense"), capture_output=True, text=True, check=False)
        self.assertEqual(result.returncode, 1)
        self.assertTrue(result.stderr.startswith("kit: there is no part nonsense; there are: devices"))
        result = subprocess.run(self.command(program="/nonexistent"), capture_output=True, text=True,
                                check=False)
        self.assertIn("kit: there is no /nonexistent", result.stderr)

    def test_a_folder_that_runs_by_itself(self):
        folder = self.directory / "kit"
        programs = ["--binary", "cmd/fsdp-train", "--tests", "cmd/fsdp-train"]
        folder.mkdir()
        (folder / "mine").write_text("")
        made = subprocess.run([KIT, "build", "--out", folder, *programs],
                              capture_output=True, text=True, check=False)
        self.assertIn("is there and is no kit", made.stderr)
        (folder / "mine").unlink()
        made = subprocess.run([KIT, "build", "--out", folder, *programs],
                              capture_output=True, text=True, check=False)
        self.assertEqual(made.returncode, 0, made.stderr)
        self.assertLessEqual(sum(p.stat().st_size for p in folder.rglob("*") if p.is_file()), 40 << 20)
        # A program without CUDA: the part says so.
        result = subprocess.run([folder / "kit", "run", "devices", "--out", self.out],
                                capture_output=True, text=True, check=False)
        self.assertEqual(result.returncode, 1, result.stdout)
        self.assertIn("built without CUDA", result.stdout)
        for name in ("configs/hardware/h200-141gb.yaml", "bench/qwen2.5.yaml", "bench/torch_step.py",
                     "bin/gpu_op_tests"):
            self.assertTrue((folder / name).exists(), name)
        # A program of tests that loads what is not in the kit.
        made = subprocess.run([KIT, "build", "--out", folder, *programs[:3], TESTS],
                              capture_output=True, text=True, check=False)
        self.assertIn("the tests load what is not in the kit: ", made.stderr)


if __name__ == "__main__":
    unittest.main()
