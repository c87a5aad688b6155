"""The parts of tools/gpu/kit that stand beside PyTorch."""

import functools
import json
import math
import os
import shutil
import socket
import statistics
import sys

from rows import BENCH, Refused, TINY_OPS, losses_of, records, row, settings, sizes

sys.path.insert(0, str(BENCH))
import turns  # noqa: E402

BACKENDS = ("cudnn", "flash")  # Backends of attention.
# Against PyTorch: steps that are compared, those behind them that count, and in how many turns.
COMPARED, COUNTED, ROUNDS = 3, 8, 2
# Compiled, a turn of this one's begins with a minute of the compiler, and two would not be over in time.
LARGEST = "qwen2.5-3b"
# Relative differences that still are the same work. In bf16 each rounds in places of its own, by 2^-9
# of a value; a norm has a few roundings a layer in it (tools/bench/step.py).
SAME_LOSS, SAME_NORM = 1e-3, 2**-6
# Images 224 x 224 of a micro-batch, in bf16 on fp32 weights; and the settings of a small run on a
# CPU.
IMAGE_MODELS = {"vit-base": 64, "regnet-y-400mf": 128, "regnet-y-16gf": 64}
SMALL_IMAGES = {"vit-base": ["hidden_size=24", "intermediate_size=24", "num_attention_heads=2",
                             "num_hidden_layers=1", "image_size=32"]}
# The dtypes of FSDP2 under MixedPrecisionPolicy(bf16, reduce_dtype=fp32).
AS_FSDP2 = ["fsdp.mixed_precision={param_dtype: bf16, grad_dtype: bf16, reduce_dtype: fp32, "
            "master_dtype: fp32}", "optimizer.state_dtype=fp32"]


def ceilings(kit):
    """how fast this GPU copies, multiplies and attends, by PyTorch's kernels"""

    def copy():
        shapes = TINY_OPS if kit.small else []
        ours = json.loads(kit.fsdp("bench", "ops", "--device", "cuda", "--only", "fill", "--json",
                                   *shapes))["copy_gb_per_s"]
        size = 1 << (16 if kit.small else 30)
        try:
            seconds, = kit.torch_seconds([{"kind": "copy", "bytes": size}])
        except Refused as error:
            raise Refused(f"ours copies {ours:.4g} GB/s; {error}") from None
        theirs = 2 * size / seconds * 1e-9
        return row(True, f"{theirs:.4g} GB/s, read and written; ours {ours:.4g}", gb_per_s=theirs,
                   ours=ours)

    yield "copy", copy
    for name, flags in sizes(kit):
        @functools.cache
        def measured(flags=flags):
            """The products of our step, seconds of each by PyTorch, those of attention."""
            parts = json.loads(kit.fsdp("bench", "gemm", *flags, "--device", "cuda", "--rounds", 1,
                                        "--json"))["parts"]
            parts = [part for part in parts if part["groups"] == 1]  # PyTorch's have no groups here.
            recipe = kit.resolved(flags)
            model = recipe["model"]
            attention = {"kind": "attention", "batch": recipe["train"]["micro_batch_size"],
                         "seq": recipe["data"]["seq_len"], "heads": model["num_attention_heads"],
                         "groups": model["num_key_value_heads"], "head": model["head_dim"]}
            seconds = kit.torch_seconds(
                [{"kind": "gemm", **{key: part[key] for key in ("m", "n", "k", "dtype")}}
                 for part in parts] + [{**attention, "backend": backend} for backend in BACKENDS])
            return parts, seconds[:len(parts)], attention, dict(zip(BACKENDS, seconds[len(parts):]))

        def gemm(measured=measured):
            parts, seconds, _, _ = measured()
            flops = [2 * part["m"] * part["n"] * part["k"] for part in parts]
            rates = {part["name"]: f / s * 1e-12 for part, f, s in zip(parts, flops, seconds)}
            # Each as often as in a step.
            whole = sum(part["flops"] for part in parts)
            theirs = whole / sum(part["flops"] / f * s
                                 for part, f, s in zip(parts, flops, seconds)) * 1e-12
            ours = whole / sum(part["seconds"] for part in parts) * 1e-12
            return row(True, f"{theirs:.4g} TFLOP/s, {min(rates.values()):.4g} to "
                       f"{max(rates.values()):.4g}; ours {ours:.4g}", tflops=theirs, ours=ours,
                       by_product=rates)
        yield f"GEMM {name}", gemm
        for backend in BACKENDS:
            def attention(measured=measured, backend=backend):
                _, _, of, seconds = measured()
                if "error" in seconds[backend]:
                    raise Refused(seconds[backend]["error"])
                # Two products forward and five backward, half of each behind the mask.
                product = of["batch"] * of["heads"] * of["seq"] ** 2 * of["head"]
                forward = 2 * product / seconds[backend]["forward"] * 1e-12
                backward = 5 * product / seconds[backend]["backward"] * 1e-12
                return row(True, f"{forward:.4g} TFLOP/s forward, {backward:.4g} backward",
                           forward=forward, backward=backward)
            yield f"attention {name} {backend}", attention


class Turn(turns.Participant):
    """A start of its own each time: what two trainers hold would not fit side by side. The first
    steps are compared, and do not count."""

    def __init__(self, name, start):
        self.name, self.start, self.last = name, start, None

    def turn(self):
        self.last = self.start()
        return self.last["seconds"]


def our_turn(kit, flags, compared):
    run = kit.scratch / "ours"
    shutil.rmtree(run, ignore_errors=True)
    kit.fsdp(*flags, "--device", "cuda", "--set", f"run.dir={run}")
    steps = records(run)
    return {"losses": losses_of(run)[:compared],
            "seconds": [record["step_time_s"] for record in steps[compared:]],
            "bytes": max(record["memory"]["allocated_peak"] for record in steps)}


def their_turn(kit, recipe, initial, options, compared, counted):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    ranks = {"WORLD_SIZE": "1", "RANK": "0", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1",
             "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    out = kit.call(kit.python, BENCH / "torch_step.py", "--recipe", recipe, "--initial", initial,
                   "--tokens", initial / "tokens.npy", "--threads", os.cpu_count(), "--device",
                   "cuda", "--wrapper", "fsdp2", "--bf16", "policy", *options,
                   text=f"check {compared}\n{counted}\n", environment=ranks)
    _, checked, counted = map(json.loads, out.splitlines())
    return {"losses": list(zip(checked["losses"], checked["grad_norms"])),
            "seconds": counted["seconds"], "bytes": counted["peak_bytes"]}


def apart(ours, theirs):
    """Largest relative differences of two turns: of losses, of norms."""
    pairs = list(zip(ours["losses"], theirs["losses"], strict=True))
    if not all(math.isfinite(number) for pair in pairs for step in pair for number in step):
        return [math.inf, math.inf]
    return [max(abs(a[i] - b[i]) / abs(b[i]) for a, b in pairs) for i in (0, 1)]


def turns_of(kit, inputs, options, compared, counted, **train):
    """Both sides' turns, and tokens of a step; `train`: of this section of the recipe."""
    flags, resolved, initial = inputs
    flags = flags + settings([f"train.{key}={value}" for key, value in
                              {"steps": compared + counted, **train}.items()])
    resolved = {**resolved, "train": {**resolved["train"], **train}}
    recipe = kit.scratch / "recipe.json"
    recipe.write_text(json.dumps(resolved))
    return (lambda: our_turn(kit, flags, compared),
            lambda: their_turn(kit, recipe, initial, options, compared, counted),
            resolved["train"]["global_batch_size"] * resolved["data"]["seq_len"])


def peers(kit):
    """us against PyTorch's FSDP2, eager and compiled, by turns, from the same weights and tokens"""
    for name, flags in sizes(kit, most=3):
        @functools.cache
        def inputs(name=name, flags=flags):
            initial = kit.scratch / f"initial_{name}"
            flags = [*flags, *settings(AS_FSDP2)]
            shape = kit.scratch / "shape.json"
            resolved = kit.resolved(flags)
            shape.write_text(json.dumps(resolved["model"]))
            kit.call(kit.python, BENCH / "torch_inputs.py", shape, initial, "--device", "cuda",
                     "--dtype", "bfloat16")
            flags += settings([f"model.init_from={initial}", "data.train.source=tokens",
                               f"data.train.paths=[{initial}/tokens.npy]", "data.shuffle=false",
                               "log.every=1", "log.tensorboard=false", "checkpoint.every=null"])
            return flags, resolved, initial

        for mode, options in (("eager", []), ("compile", ["--compile"])):
            def make(inputs=inputs, options=options,
                     rounds=1 if (name, mode) == (LARGEST, "compile") else ROUNDS):
                our, their, tokens = turns_of(kit, inputs(), options, COMPARED, COUNTED)
                ours, theirs = Turn("ours", our), Turn("theirs", their)
                times = turns.alternate([ours, theirs], rounds, progress=False)
                ratios = [statistics.median(b) / statistics.median(a) for a, b in zip(*times)]
                rates = [tokens / statistics.median(sum(each, [])) for each in times]
                loss, norm = apart(ours.last, theirs.last)
                return row(
                    loss <= SAME_LOSS and norm <= SAME_NORM,
                    f"{rates[0]:.4g} tokens/s, {statistics.median(ratios):.3f} of theirs "
                    f"({min(ratios):.3f} to {max(ratios):.3f}); {ours.last['bytes'] / 2**30:.2f} GiB "
                    f"against {theirs.last['bytes'] / 2**30:.2f}; losses within {loss:.1e}, norms "
                    f"{norm:.1e}", tokens_per_s=rates, ratios=ratios, seconds=times, loss=loss,
                    norm=norm, bytes=[ours.last["bytes"], theirs.last["bytes"]], torch=kit.torch())
            yield f"{name} {mode}", make

        def losses(inputs=inputs):
            micro_batch = inputs()[1]["train"]["micro_batch_size"]
            our, their, _ = turns_of(kit, inputs(), ["--compile"], kit.steps, 0,
                                     global_batch_size=micro_batch)
            ours, theirs = our(), their()
            loss, norm = apart(ours, theirs)
            return row(loss <= SAME_LOSS, f"{kit.steps} steps of one micro-batch, compiled: losses "
                       f"within {loss:.1e}, norms {norm:.1e}, the last {ours['losses'][-1][0]:.4f} and "
                       f"{theirs['losses'][-1][0]:.4f}", loss=loss, norm=norm, steps=kit.steps,
                       ours=ours["losses"], theirs=theirs["losses"])
        yield f"{name} losses", losses


def images(kit):
    """steps of models of images against PyTorch's, eager and compiled, by turns"""
    for preset, batch in IMAGE_MODELS.items():
        if kit.small and preset not in SMALL_IMAGES:
            continue
        small = SMALL_IMAGES[preset] if kit.small else []
        batch = 2 if kit.small else batch
        recipe = kit.scratch / f"{preset}.yaml"
        recipe.write_text(f"model: {{preset: {preset}}}\n"
                          "data: {train: {source: synthetic}, valid: null}\n"
                          f"train: {{steps: {COMPARED + COUNTED}, micro_batch_size: {batch}, "
                          f"global_batch_size: {batch}}}\nlog: {{every: 1, tensorboard: false}}\n"
                          "checkpoint: {every: null}\n")
        flags = ["--config", recipe, *settings([f"model.{one}" for one in small] + AS_FSDP2)]

        def their(options, flags=flags, batch=batch):
            shape = kit.scratch / "shape.json"
            shape.write_text(json.dumps(kit.resolved(flags)["model"]))
            return json.loads(kit.call(
                kit.python, BENCH / "torch_images.py", "--shape", shape, "--batch", batch, "--steps",
                COUNTED, "--device", "cpu" if kit.small else "cuda", *options).splitlines()[-1])

        for mode, options in (("eager", []), ("compile", ["--compile"])):
            def make(flags=flags, batch=batch, their=their, options=options):
                ours = Turn("ours", lambda: our_turn(kit, flags, COMPARED))
                theirs = Turn("theirs", lambda: their(options))
                times = turns.alternate([ours, theirs], ROUNDS, progress=False)
                ratios = [statistics.median(b) / statistics.median(a) for a, b in zip(*times)]
                rates = [batch / statistics.median(sum(each, [])) for each in times]
                return row(True, f"{rates[0]:.4g} images/s, {statistics.median(ratios):.3f} of theirs "
                           f"({min(ratios):.3f} to {max(ratios):.3f})", images_per_s=rates,
                           ratios=ratios, seconds=times, parameters=theirs.last["parameters"],
                           bytes=[ours.last["bytes"], theirs.last["peak_bytes"]],
                           torch=kit.torch())
            yield f"{preset} {mode}", make
