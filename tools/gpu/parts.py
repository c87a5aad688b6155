"""The parts of tools/gpu/kit: each gives the names of its rows, and what makes them."""

import contextlib
import functools
import json
import math
import os
import pathlib
import re
import shutil
import signal
import socket
import statistics
import time

from predict_parts import (LARGE_STEPS, PLACES, large_recipe, large_steps, offloaded_steps, predict,
                           sizes_of_ops)
from rows import (Ended, RELUS, Refused, TINY_OPS, fitting, losses_of, once, records, row, settings,
                  shape_of, sizes)
from torch_parts import ceilings, images, peers

# Limits of the relative difference between losses on the GPU and on the CPU: 50 steps make this
# much of the rounding of sums. Norms of gradients, which other numbers move far more than losses,
# have limits ten times as high.
LIMITS = {"fp32": 1e-4, "bf16": 2e-3, "fp16": 5e-4}
ROUNDINGS = {"fp32": 2**-24, "bf16": 2**-9, "fp16": 2**-12}
PRECISIONS = {
    "fp32": "{}",
    "bf16": "{param_dtype: bf16, grad_dtype: bf16, reduce_dtype: bf16}",
    # At the standard scale the ViT's twelfth step overflows, on a CPU, too.
    "fp16": "{param_dtype: fp16, grad_dtype: fp16, reduce_dtype: fp16, scaler: {init_scale: 4096.0}}",
}

GRANULE = 4 << 20  # Two granules of the driver's memory, in bytes.
# compute-sanitizer looks at kernels of ours alone, because those of libraries take it minutes; and
# at no call that is refused, because some are made to ask (pinned memory, an algorithm).
OF_OURS = ("--kernel-name", "kernel_substring=4fsdp")
WITHOUT_CALLS = {"memcheck": ("--report-api-errors", "no"), "racecheck": ()}
# compute-sanitizer's last line where it has found nothing.
CLEAN = {"memcheck": "ERROR SUMMARY: 0 errors", "racecheck": "RACECHECK SUMMARY: 0 hazards displayed"}

LARGE_MICRO_BATCHES = 64  # A micro-batch is 8 rows of 1,024: 524,288 tokens a step.
# The ops whose rates depend on a model's size: those with products. Each text is in their names.
MULTIPLYING = ("linear", "attention, ", "head and loss")
# Tests whose products cuBLASLt takes: of those that compare with an oracle, not bits with bits.
WITH_PRODUCTS = ("HeadLossTest", "LinearTest", "LoraTest")
BY_LIBRARY = ("cublaslt", "cublaslt-deterministic")
NOT_BY_LIBRARY = "none was by cuBLASLt"
# tests/trainer/runtime/cuda/on_gpu_test.cc, tests/trainer/ops/launch_queue_test.cc.
OF_THE_RUNTIME = "Gpu/*:GpuQueue.*"
MOST_BAD = 8  # Tests of a suite that fail alone: then the others are not tried.


def apart(got, want):
    """The largest differences of two runs, of losses and of norms, relative to the second's."""
    numbers = [number for step in got for number in step]
    if len(got) != len(want) or not all(number and math.isfinite(number) for number in numbers):
        return math.inf, math.inf
    return tuple(max(abs(a[i] - b[i]) / b[i] for a, b in zip(got, want)) for i in (0, 1))


def within(differences, limit, of, norms=0.0):
    """`norms`: the limit of these, if it is more than ten times that of losses."""
    loss, norm = differences
    norms = max(norms, 10 * limit)
    return row(loss <= limit and norm <= norms,
               f"losses within {loss:.1e} of {of}, norms {norm:.1e}, limits {limit:.0e} and "
               f"{norms:.0e}", loss=loss, norm=norm)


def flipped(model, precision):
    """How far off a gradient may be that passes the model's ReLUs: the root of twice the share of those
    that are within four roundings of 0, as tests/trainer/engine/cuda_twin_test.cc has it."""
    return math.sqrt(2 * RELUS.get(model, 0) * 4 * ROUNDINGS[precision])


def devices(kit):
    """what there is to compute with"""
    lines = [line.strip() for line in kit.fsdp("devices").splitlines()]
    gpus = [line for line in lines if line.startswith("cuda  0:")]
    yield "GPU", lambda: row(bool(gpus), gpus[0] if gpus else "none: " + " ".join(lines))
    for line in lines:
        if line.startswith("lib"):
            name, text = line.split(": ", 1)
            yield name, lambda text=text: row(True, text)


def tests_of(kit, chosen):
    """The tests that a filter chooses: suite (EveryDevice/GeluTest) -> names."""
    listed = kit.call(kit.tests, "--gtest_list_tests", "--gtest_filter=" + chosen)
    found, names = {}, None
    for line in listed.splitlines():
        line = line.split("#")[0].rstrip()
        if line.startswith("  ") and names is not None:
            names.append(line.strip())
        elif line.endswith("."):
            names = found.setdefault(line[:-1], [])
    if not found:
        raise RuntimeError("there are no tests")
    return found


def tests_of_ops(kit):
    return tests_of(kit, "*CastTest.*:*RopeTest.*:*LoraTest.*" if kit.small else f"*-{OF_THE_RUNTIME}")


def outcomes(kit, tests, products=""):
    """(name, fault or None) of each test of this filter that was run. Throws Ended. With `products`,
    cuBLASLt computes them, and it is a fault if it computes none."""
    report = kit.scratch / "tests.json"
    report.unlink(missing_ok=True)
    try:
        said = kit.call(kit.tests, "--gtest_filter=" + tests, f"--gtest_output=json:{report}",
                        environment={"FSDP_TRAIN_TEST_PRODUCTS": products} if products else None)
    except Ended as error:
        if error.code != 1 or not report.exists():
            raise
        said = error.out
    if products and not re.search(r"^cuBLASLt: [1-9][0-9]* products$", said, re.MULTILINE):
        yield "products", NOT_BY_LIBRARY
    for suite in json.loads(report.read_text())["testsuites"]:
        for test in suite["testsuite"]:
            failures = [" ".join(one["failure"].split()) for one in test.get("failures", [])]
            if not failures and test.get("result") != "COMPLETED":
                failures = ["skipped"]  # A skipped test has tested nothing.
            yield test["name"], failures[0] if failures else None


def one_by_one(kit, suite, names, products):
    """The same, each test in a process of its own, as far as the row's time goes, or the news."""
    bad = 0
    for name in names:
        if bad == MOST_BAD or time.monotonic() + 20 > kit.row_deadline:
            yield name, "not tried"
            continue
        try:
            found = list(outcomes(kit, f"{suite}.{name}", products))
        except Ended as error:
            found = [(name, str(error))]
        bad += any(why is not None for _, why in found)
        yield from found


def suite_row(kit, suite, names, products=""):
    """The row of these tests of a suite."""
    try:
        found = list(outcomes(kit, ":".join(f"{suite}.{name}" for name in names)
                              if products else suite + ".*", products))
        wrong = any(why not in (None, "skipped", NOT_BY_LIBRARY) for _, why in found)
    except Ended:
        wrong = True
    if wrong:  # A fault of the GPU spoils all that comes behind it in its process.
        found = list(one_by_one(kit, suite, names, products))
    bad = [f"{name}: {why}" for name, why in found if why is not None]
    if len(found) != len(names):
        bad.append(f"{len(found)} were run")
    if not bad and wrong:
        bad = ["together, and none alone"]
    return row(not bad, f"{len(bad)} of {len(names)} failed: {bad[0]}" if bad else f"{len(names)} tests",
               tests=len(names), failed=bad)


def runtime(kit):
    """streams, events, buffers and failures, and work of the host behind a full launch queue"""
    for suite, names in tests_of(kit, OF_THE_RUNTIME).items():
        yield suite.removeprefix("Gpu/"), functools.partial(suite_row, kit, suite, names)


def op_tests(kit):
    """the tests of every op, on the GPU, products also by cuBLASLt"""
    for suite, names in tests_of_ops(kit).items():
        short = suite.removeprefix("EveryDevice/")
        for products in ("", *(BY_LIBRARY if short in WITH_PRODUCTS else ())):
            tried = [name for name in names if not products or "Match" in name]
            yield (short + (f", {products}" if products else ""),
                   functools.partial(suite_row, kit, suite, tried, products))


def losses(kit):
    """the losses of six models in three precisions, against the CPU device"""
    for model in kit.models:
        for precision, formats in PRECISIONS.items():
            def make(model=model, precision=precision, formats=formats):
                recipe, setting = kit.recipe(model), "fsdp.mixed_precision=" + formats
                return within(apart(kit.losses(recipe, "cuda", setting),
                                    kit.losses(recipe, "cpu", setting)),
                              LIMITS[precision], "the CPU's", flipped(model, precision))
            yield f"{model} {precision}", make


def ranks(kit):
    """two and three ranks on one GPU, against one; with quantised gathers against the CPU's"""
    recipe = kit.recipe("gpt2")
    first_gpu = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    on_one = {"CUDA_VISIBLE_DEVICES": first_gpu}
    alone = functools.cache(lambda: kit.losses(recipe, "cuda"))
    for strategy in ("full_shard", "no_shard"):
        for number in (2, 3):
            def make(strategy=strategy, number=number):
                got = kit.losses(recipe, "cuda", "fsdp.sharding_strategy=" + strategy, ranks=number,
                                 environment=on_one)
                return within(apart(got, alone()), LIMITS["fp32"], "one rank's")
            yield f"{strategy}, {number} ranks", make
    for form in ("int8", "fp8"):
        def quantized(form=form):
            settings = ("fsdp.mixed_precision=" + PRECISIONS["bf16"],
                        f"fsdp.quantize={{gather: {form}, min_size: 1}}")
            return within(apart(kit.losses(recipe, "cuda", *settings, ranks=2, environment=on_one),
                                kit.losses(recipe, "cpu", *settings, ranks=2)),
                          LIMITS["bf16"], "the CPU's")
        yield f"gathers in {form}, 2 ranks", quantized


# NCCL from 2.30.3 on takes two ranks on one GPU, where it is told so; without MPS they take turns on it.
SHARED_FROM = (2, 30, 3)
SHARED = {"NCCL_MULTI_RANK_GPU_ENABLE": "1", "NCCL_NVLS_ENABLE": "0", "NCCL_MAX_CTAS": "2"}
STARTS, LONGEST_START_S = 20, 10


def nccl_version(kit):
    found = re.search(r"libnccl[^:]*:.*?([0-9]+)\.([0-9]+)\.([0-9]+)", kit.fsdp("devices"))
    return tuple(map(int, found.groups())) if found else (0, 0, 0)


def two_hosts(kit, recipe, environment, *settings):
    """The losses of two ranks on hosts of different names, each with a launcher of its own."""
    run = kit.scratch / f"hosts{kit.runs}"
    kit.runs += 1
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    launchers = []
    for node in (0, 1):
        flags = ["launch", "--nnodes", 2, "--node-rank", node, "--nproc-per-node", 1, "--rdzv-endpoint",
                 f"localhost:{port}", "--", "--config", recipe, "--device", "cuda"]
        for setting in (f"run.dir={run}", *settings):
            flags += ["--set", setting]
        launchers.append(kit.start(kit.program, *flags,
                                   environment={**environment, "FSDP_TRAIN_HOST": f"host{node}"}))
    for launcher in launchers:
        kit.finish(launcher)
    return losses_of(run)


def start_and_end(kit, recipe, environment):
    """The longest of so many starts and ends of a run of three steps."""
    seconds = []
    for _ in range(3 if kit.small else STARTS):
        begin = time.monotonic()
        kit.train(recipe, "cuda", "train.steps=3", ranks=2, environment=environment)
        seconds.append(time.monotonic() - begin)
    return row(max(seconds) < LONGEST_START_S, f"{len(seconds)} starts and ends of 3 steps: the longest "
               f"took {max(seconds):.1f} s, the median {statistics.median(seconds):.1f} s", seconds=seconds)


def killed(kit, recipe, environment):
    """The last words of the other rank when one is killed in step 5, and the seconds until it ends."""
    run = kit.scratch / "killed"
    flags = ["launch", "--nproc-per-node", 2, "--", "--config", recipe, "--device", "cuda", "--set",
             f"run.dir={run}", "--set", "train.steps=1000000", "--set", "log.every=1"]
    launcher = kit.start(kit.program, *flags, environment=environment)
    victim = None
    while victim is None:
        time.sleep(0.05)
        if launcher.poll() is not None or time.monotonic() > kit.row_deadline:
            return row(False, "step 5 did not come: " + kit.words_of(launcher)[-1])
        with contextlib.suppress(OSError, ValueError, KeyError, IndexError):
            if records(run)[-1]["step"] >= 5:
                children = pathlib.Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children")
                victim = int(children.read_text().split()[-1])
    begin = time.monotonic()
    os.kill(victim, signal.SIGKILL)
    words = kit.words_of(launcher)
    seconds = time.monotonic() - begin
    return row(launcher.returncode == 137 and seconds < 60, f"all ended {seconds:.1f} s after kill -9, exit "
               f"code {launcher.returncode}: {words[-1]}", seconds=seconds, said=words[-20:])


def collectives(kit, ranks, environment=None):
    """All that a run asks of NCCL, timed; of one rank a copy each."""
    of_one = ", one rank" if ranks == 1 else ""
    sizes_of_it = ["--sizes", "4k", "--batches", 1] if kit.small else []
    for flags in ([], ["--deterministic"]):
        def make(flags=flags):
            found = json.loads(kit.fsdp("bench", "comm", "--device", "cuda", "--transport", "nccl",
                                        "--ranks", ranks, "--dtype", "bf16", "--json", *flags,
                                        *sizes_of_it, environment=environment))["collectives"]
            best = {}
            for one in found:
                rate = one["bytes"] / one["seconds"] * 1e-9
                best[one["collective"]] = max(rate, best.get(one["collective"], 0))
            return row(True, "GB/s of a tensor: " + "; ".join(f"{name} {best[name]:.4g}"
                                                               for name in best), gb_per_s=best,
                       collectives=found)
        yield "collectives" + of_one + (", deterministic" if flags else ""), make


def nccl(kit):
    """NCCL: rates, losses against one rank's, two hosts, starts, a kill, memory; 2 ranks on 1 GPU, or all GPUs"""
    gpus = sum(line.strip().startswith("cuda ") and "none:" not in line
               for line in kit.fsdp("devices").splitlines())
    if gpus == 0:
        raise Refused("there is no GPU")
    environment = {}
    if gpus == 1:
        yield from collectives(kit, ranks=1)
        if nccl_version(kit) < SHARED_FROM:
            def older():
                raise Refused("there is one GPU, and NCCL before 2.30.3 wants one for each rank")
            yield "two ranks", older
            return
        environment = SHARED
    ranks = max(2, gpus)
    recipe = kit.recipe("gpt2")
    alone = functools.cache(lambda precision: kit.losses(
        recipe, "cuda", "fsdp.mixed_precision=" + PRECISIONS[precision]))

    def beside_one(precision, got):
        return within(apart(got, alone(precision)), LIMITS[precision], "one rank's")
    for strategy, precision in (("full_shard", "fp32"), ("no_shard", "fp32"), ("full_shard", "bf16")):
        for how in ("false", "true"):
            settings = ("fsdp.sharding_strategy=" + strategy, "run.deterministic=" + how,
                        "fsdp.mixed_precision=" + PRECISIONS[precision])
            yield (f"{strategy} {precision}" + (", deterministic" if how == "true" else ""),
                   lambda settings=settings, precision=precision: beside_one(precision, kit.losses(
                       recipe, "cuda", *settings, ranks=ranks, environment=environment)))
    for name, precision, settings in (
            ("two hosts", "fp32", ()),
            ("two hosts, hybrid", "fp32", ("fsdp.sharding_strategy=hybrid_shard",)),
            ("two hosts, bf16", "bf16", ("fsdp.mixed_precision=" + PRECISIONS["bf16"],))):
        yield name, lambda precision=precision, settings=settings: beside_one(
            precision, two_hosts(kit, recipe, environment, *settings))

    def quantized():
        settings = ("fsdp.mixed_precision=" + PRECISIONS["bf16"], "fsdp.quantize={gather: int8, min_size: 1}")
        return within(apart(two_hosts(kit, recipe, environment, *settings),
                            kit.losses(recipe, "cpu", *settings, ranks=2)), LIMITS["bf16"], "the CPU's")
    yield "two hosts, gathers in int8", quantized
    yield "starts", lambda: start_and_end(kit, recipe, environment)
    yield "a rank is killed", lambda: killed(kit, recipe, environment)
    yield from collectives(kit, ranks, environment)
    # NCCL_MAX_CTAS of ranks that share a GPU goes before collective_blocks; products follow it all the same.
    for setting in ("communicators=1", "communicators=2", "collective_blocks=0", "collective_blocks=8",
                    "collective_blocks=16"):
        def memory_and_time(setting=setting):
            run = kit.train(recipe, "cuda", "fsdp." + setting, ranks=ranks, environment=environment)
            gpu = json.loads((run / "provenance.json").read_text())["gpu_memory"]
            took = statistics.median(record["step_time_s"] for record in records(run))
            return row(True, f"{took * 1e3:.1f} ms a step; {gpu['taken']} bytes taken, and outside of the "
                       f"allocator {gpu['outside']}", seconds=took, **gpu)
        yield setting.replace("=", " "), memory_and_time


def checkpoints(kit):
    """a checkpoint of either device goes on on the other"""
    whole = kit.scratch / "whole.yaml"
    whole.write_text(kit.recipe("gpt2").read_text())
    half = kit.recipe("gpt2", kit.steps // 2)
    want = functools.cache(lambda: kit.losses(whole, "cpu"))
    for first, second in (("cpu", "cuda"), ("cuda", "cpu")):
        def make(first=first, second=second):
            run = kit.train(half, first, f"checkpoint.every={kit.steps // 2}")
            kit.train(whole, second, run=run)
            return within(apart(losses_of(run), want()), LIMITS["fp32"], "the CPU's")
        yield f"{first}, then {second}", make


def memory(kit):
    """what is planned is what is allocated, and what the driver says is taken"""
    for model in kit.models:
        def make(model=model):
            recipe = kit.recipe(model, 3)
            run = kit.train(recipe, "cuda")
            used = records(run)[-1]["memory"]["allocated_peak"]
            gpu = json.loads((run / "provenance.json").read_text())["gpu_memory"]
            machine = kit.scratch / "machine.yaml"
            machine.write_text("{name: any, device: cuda}\n")
            plan = json.loads(kit.fsdp("plan", "--config", recipe, "--world-size", 1, "--hardware",
                                       machine, "--json"))["memory"]["allocated_peak"]
            return row(used == plan and abs(gpu["taken"] - plan) <= GRANULE,
                       f"{used} bytes in use, {plan} planned, {gpu['taken']} taken as the driver says, "
                       f"beside {gpu['outside']}", used=used, plan=plan, **gpu)
        yield model, make


def the_sanitizer(kit):
    places = os.environ["PATH"] + ("" if kit.small else ":/usr/local/cuda/bin")
    return shutil.which("compute-sanitizer", path=places)


def no_sanitizer():
    raise Refused("there is no compute-sanitizer")


def sanitized(kit, found, tool, *command, fine=()):
    """The row of a program under it: fine is what the tool itself calls so, at its end."""
    log = kit.scratch / "sanitizer.log"
    log.unlink(missing_ok=True)
    ended = []
    try:
        kit.call(found, "--tool", tool, "--error-exitcode", 99, "--log-file", log, *OF_OURS,
                 *WITHOUT_CALLS[tool], *command)
    except Ended as error:
        if error.code not in fine:
            ended = [str(error)]
    lines = [line.strip("= ") for line in log.read_text().splitlines()] if log.exists() else []
    said = [line for line in lines if "SUMMARY:" in line]
    if len(said) == 1 and said[0].startswith(CLEAN[tool]) and not ended:
        return row(True, said[0])
    first = [line for line in lines if re.match("Error: |Warning: |Invalid ", line)][:1]
    return row(False, "; ".join((said or ["the tool has said no summary"]) + first + ended))


# Under racecheck cuBLASLt's kernels of these fault on an H100 (13.1): the tests of ops look at ours.
WITHOUT_RACECHECK = ("bf16", "fp16")


def sanitizer(kit):
    """compute-sanitizer over two steps: memcheck, racecheck"""
    found = the_sanitizer(kit)
    for tool in ("memcheck", "racecheck"):
        for precision, formats in PRECISIONS.items():
            if tool == "racecheck" and precision in WITHOUT_RACECHECK:
                continue
            def make(tool=tool, formats=formats):
                if found is None:
                    no_sanitizer()
                kit.runs += 1
                return sanitized(kit, found, tool, kit.program, "--config", kit.recipe("qwen2", 2),
                                 "--device", "cuda", "--set", f"run.dir={kit.scratch}/run{kit.runs}",
                                 "--set", "fsdp.mixed_precision=" + formats)
            yield f"{tool} {precision}", make


def races(kit):
    """compute-sanitizer's racecheck over the tests of every op"""
    found = the_sanitizer(kit)
    if found is None:
        yield "racecheck", no_sanitizer
        return
    for suite in tests_of_ops(kit):
        def make(suite=suite):
            # Exit code 1, the test's own failure, is op_tests' to report.
            return sanitized(kit, found, "racecheck", kit.tests, f"--gtest_filter={suite}.*", fine=(1,))
        yield suite.removeprefix("EveryDevice/"), make


def products(kit):
    """the rate of a step's matrix products, by themselves"""
    for name, flags in sizes(kit):
        def make(flags=flags):
            parts = json.loads(kit.fsdp("bench", "gemm", *flags, "--device", "cuda", "--rounds", 3,
                                        "--json"))["parts"]
            rates = {part["name"]: part["flops"] / part["seconds"] * 1e-12 for part in parts}
            rate = sum(p["flops"] for p in parts) / sum(p["seconds"] for p in parts) * 1e-12
            slowest = min(rates, key=rates.get)
            return row(True, f"{rate:.4g} TFLOP/s; slowest: {slowest}, {rates[slowest]:.4g}",
                       tflops=rate, by_product=rates, parts=parts)
        yield name, make


def ops(kit):
    """every op's time against its FLOPs at a product's rate or its bytes at a copy's"""
    shapes = ["--batch", 16, "--seq", 1024, "--hidden", 896, "--intermediate", 4864, "--heads", 14,
              "--vocab", 151936]
    if kit.small:
        shapes = TINY_OPS

    def timed(dtype, shape, only=("",)):
        found = [json.loads(kit.fsdp("bench", "ops", "--device", "cuda", "--dtype", dtype, "--json",
                                     "--only", text, *shape())) for text in only]
        all_ops = [op for one in found for op in one["ops"]]
        shares = {op["name"]: op["share_of_limit"] for op in all_ops}
        worst = sorted(shares, key=shares.get)[:5]
        return row(True, "shares of the limit, worst first: " +
                   "; ".join(f"{name} {shares[name]:.2f}" for name in worst),
                   ops=all_ops, share_of_limit=shares,
                   **{key: found[0][key] for key in ("dtype", "shapes", "gemm_gflops", "copy_gb_per_s")})

    for dtype in ("bf16", "fp32"):
        yield dtype, functools.partial(timed, dtype, lambda: shapes)
    for name, shape in sizes_of_ops(kit):
        yield f"bf16, {name}", functools.partial(timed, "bf16", shape, MULTIPLYING)
    yield "bf16, convolutions by our kernels", functools.partial(
        timed, "bf16", lambda: [*shapes, "--own-kernels"], ("convolution",))


def rates_here(kit, flags):
    """The rates that this GPU reaches now in a recipe's step: its products by the fastest algorithms that
    have been timed, its attention by itself, a copy. Keys of a hardware file."""
    parts = json.loads(kit.fsdp("bench", "gemm", *flags, "--device", "cuda", "--rounds", 3,
                                "--json"))["parts"]
    dtype = parts[0]["dtype"]
    timed = json.loads(kit.fsdp("bench", "ops", "--device", "cuda", "--dtype", dtype, "--only",
                                "attention", "--json", *(["--seconds", 0] if kit.small else []),
                                *shape_of(kit, flags)))
    attention = {op["name"]: op["flops"] / op["seconds"] for op in timed["ops"]}
    return {f"{dtype}_flops": sum(part["flops"] for part in parts) /
            sum(part["seconds"] for part in parts),
            "attention_forward_flops": attention["attention, forward"],
            "attention_backward_flops": attention["attention, backward"],
            "copy_bytes_per_s": timed["copy_gb_per_s"] * 1e9}


def steps(kit):
    """a training step of each size against its floor, at the rates that this GPU reaches in this run"""
    for name, flags in sizes(kit):
        @once
        def trained(name=name, flags=flags):
            """The best step's seconds, products that cuBLASLt refused, MHz meanwhile."""
            run = kit.scratch / f"steps_{name}"
            with kit.sm_clock() as clock:
                fitting(lambda: kit.fsdp(*flags, "--device", "cuda", "--set", f"run.dir={run}"))
            seconds = min(record["step_time_s"] for record in records(run)[2:])
            refused = json.loads((run / "provenance.json").read_text()).get("refused_products", [])
            shutil.rmtree(run)
            return seconds, refused, clock

        def make(flags=flags, trained=trained):
            seconds = trained()[0]
            rates = rates_here(kit, flags)
            machine = kit.scratch / "rates.yaml"  # JSON is YAML.
            sources = dict.fromkeys(rates, "measured: in this run")
            machine.write_text(json.dumps({"name": "here", "device": "cuda", **rates,
                                           "sources": sources}))
            floor = json.loads(kit.fsdp("bench", "floor", *flags, "--hardware", machine, "--json"))
            products, forward, backward, copy = rates.values()
            return row(True, f"{floor['tokens'] / seconds:.4g} tokens/s; the floor is "
                       f"{floor['seconds'] / seconds:.3f} of its time, at {products * 1e-12:.4g} TFLOP/s "
                       f"of products, {forward * 1e-12:.4g} and {backward * 1e-12:.4g} of attention, "
                       f"{copy * 1e-9:.4g} GB/s", seconds=seconds, floor=floor["seconds"],
                       tokens=floor["tokens"], rates=rates)
        yield name, make

        def products_of_cublaslt(trained=trained):
            refused = trained()[1]
            return row(not refused, f"{len(refused)} are not by cuBLASLt: {'; '.join(refused)}"
                       if refused else "all are by cuBLASLt", refused=refused)
        yield name + ", products", products_of_cublaslt

        def clock(trained=trained):
            clock = trained()[2]
            if not clock.mhz:
                raise Refused("no nvidia-smi that says it")
            middle = statistics.median(clock.mhz)
            return row(True, f"{middle:.0f} MHz in the middle, {min(clock.mhz)} to {max(clock.mhz)}, of "
                       f"{clock.most}", mhz=middle, samples=len(clock.mhz), most=clock.most)
        yield name + ", SM clock", clock


def offload(kit):
    """updates, parameters and activations in host memory: losses, and what a step takes"""
    recipe = kit.recipe("gpt2")
    alone = functools.cache(lambda: kit.losses(recipe, "cuda"))
    for place, setting in PLACES.items():
        def make(setting=setting):
            got = kit.losses(recipe, "cuda", "fsdp.cpu_offload=" + setting,
                             "train.activation_offload=host")
            return within(apart(got, alone()), LIMITS["fp32"], "those without")
        yield "losses, " + place, make

    def seconds(flags, *more):
        kit.runs += 1
        run = kit.scratch / f"run{kit.runs}"
        kit.fsdp(*flags, "--device", "cuda", *settings([f"run.dir={run}", *more]))
        times = [record["step_time_s"] for record in records(run)[2:]]
        shutil.rmtree(run)
        return min(times)

    without = {}  # Seconds of a step by its size.
    for name, size, whole, flags in offloaded_steps(kit):
        def make(size=size, whole=whole, flags=flags):
            step = seconds(flags)
            if size not in without:
                without[size] = seconds(whole)
            ratio = step / without[size]
            return row(True, f"{step:.4g} s, {ratio:.3f} of the time without", ratio=ratio, seconds=step)
        yield name, make

    rows = large_recipe(kit)[1]
    few = next(large_steps(kit))[0]

    def large(name, flags):
        step = fitting(lambda: seconds(flags))
        if name == few:
            return row(True, f"{step:.4g} s", seconds=step)
        first = kit.numbers_of(few)["seconds"]
        whole = first + (LARGE_MICRO_BATCHES - LARGE_STEPS[0]) * max(step - first, 0) / (
            LARGE_STEPS[1] - LARGE_STEPS[0])
        rate = LARGE_MICRO_BATCHES * rows * kit.resolved(flags)["data"]["seq_len"] / whole
        return row(True, f"{step:.4g} s; from both, {rate:.4g} tokens/s of {LARGE_MICRO_BATCHES} "
                   "micro-batches; LLM.Q publishes 6.33k on an H100", tokens_per_s=rate, seconds=step)
    for name, flags in large_steps(kit):
        yield name, functools.partial(large, name, flags)


# By what is lost where time runs out before them.
PARTS = [devices, runtime, ceilings, op_tests, losses, ranks, nccl, sanitizer, peers, images, steps, products, ops,
         memory, offload, predict, checkpoints, races]
