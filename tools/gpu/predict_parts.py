"""The part of tools/gpu/kit that simulates what other parts measure, and the steps of those parts."""

import collections
import functools
import json
import re
import statistics

from rows import BENCH, Refused, fitting, once, row, settings, shape_of, sizes

MOST_ERROR = 0.10  # |predicted - measured| / measured.
# Parts whose rows the hardware file is made of.
CALIBRATED_ON = ("devices", "products", "ops")
LARGE = "qwen2.5-14b"
LARGE_STEPS = 2, 6  # The micro-batches of its steps.
PLACES = {
    "optimizer": "{optimizer: true}",
    "half of it": "{optimizer: true, optimizer_share: 0.5}",
    "parameters": "{optimizer: true, params: true}",
}


def large_recipe(kit):
    """The recipe whose offload docs/benchmarks/gpu_floor.md adds up, and the rows of a micro-batch."""
    rows = 1 if kit.small else 8
    flags = (["--config", kit.recipe("qwen2")] if kit.small else
             ["--config", BENCH / "qwen2.5.yaml", "--set", "model.preset=" + LARGE])
    return [*flags, *settings(["fsdp.cpu_offload.optimizer=true",
                               f"train={{steps: 3, micro_batch_size: {rows}, global_batch_size: "
                               f"{2 * rows}, activation_checkpointing: selective}}"])], rows


def large_steps(kit):
    """(Name, flags) of the steps of that recipe."""
    flags, rows = large_recipe(kit)
    for n in LARGE_STEPS:
        yield (f"{LARGE}, {n} micro-batches",
               [*flags, *settings([f"train.global_batch_size={n * rows}"])])


def offloaded_steps(kit):
    """(Name, size, flags without offload, flags with it) of the other steps of `offload`."""
    for size, flags in sizes(kit, most=2):
        for place, setting in PLACES.items():
            yield (f"{size}, {place}", size, flags,
                   [*flags, *settings(["fsdp.cpu_offload=" + setting])])


def sizes_of_ops(kit):
    """(Name, shape) of the sizes whose products and attention `ops` times beside all ops of the first."""
    if kit.small:
        return
    for name, flags in [*list(sizes(kit))[1:], (LARGE, large_recipe(kit)[0])]:
        yield name, functools.partial(shape_of, kit, flags)


def steps_to_predict(kit):
    """(Part, row, size, flags) of each step that is measured."""
    for name, flags in sizes(kit):
        yield "steps", name, name, flags
    for name, size, _, flags in offloaded_steps(kit):
        yield "offload", name, size, flags
    for name, flags in large_steps(kit):
        yield "offload", name, LARGE, flags


def calibrated(kit):
    """The text of a hardware file of this GPU: by these parts' rows, and copies that are timed now."""
    for part, name in (("products", next(sizes(kit))[0]), ("ops", "bf16"), ("ops", "fp32")):
        kit.numbers_of(name, part)
    result, machine = kit.scratch / "calibrated_on.json", kit.scratch / "machine.yaml"
    result.write_text(json.dumps({"parts": {part: {"rows": [
        one for one in kit.rows_of(part) if one["gpu"] == kit.gpu]} for part in CALIBRATED_ON}}))
    kit.fsdp("calibrate", "--from", result, "--overheads", "--out", machine,
             *(["--small", "--rounds", 1] if kit.small else []))
    return machine.read_text()


def prediction(predicted, measured, judged=True):
    """The row of a step's seconds."""
    error = predicted / measured - 1
    return row(abs(error) <= MOST_ERROR or not judged,
               f"predicted {predicted:.4g} s, measured {measured:.4g} s, error {error:+.1%}",
               predicted=predicted, measured=measured, error=error)


def closing(rows, judged=True):
    """The row of all predictions among these rows. Throws Refused where there is none."""
    errors = {one["name"]: abs(one["numbers"]["error"]) for one in rows if "error" in one["numbers"]}
    if not errors:
        raise Refused("nothing was predicted")
    median, worst = statistics.median(errors.values()), max(errors, key=errors.get)
    return row(median <= MOST_ERROR or not judged,
               f"error {median:.1%} in the median of {len(errors)} steps, at most {errors[worst]:.1%}: "
               f"{worst}", median=median, largest=errors[worst], steps=len(errors))


def predict(kit):
    """steps and offload, simulated by products, ops and copies alone: within 10 % of what they took"""
    judged = not kit.small  # On an emulator times mean nothing.

    def machine():
        text = calibrated(kit)
        rates = {key: float(value) for key, value in re.findall(r"^ *(\w+): ([\d.e+-]+)$", text,
                                                                re.MULTILINE)}
        return row(True, f"a copy {rates['copy_bytes_per_s'] * 1e-9:.4g} GB/s, to the host and back "
                   f"{rates['host_link_bytes_per_s'] * 1e-9:.4g}, in the host "
                   f"{rates['host_copy_bytes_per_s'] * 1e-9:.4g}; {rates['launch_s'] * 1e6:.3g} us from "
                   f"one kernel to the next, {rates['operation_s'] * 1e6:.3g} us of the host for each",
                   hardware=text)
    yield "hardware file", machine

    @once
    def hardware():
        file = kit.scratch / "hardware.yaml"
        file.write_text(kit.numbers_of("hardware file")["hardware"])
        return file

    needed = collections.defaultdict(list)  # Rows of other parts, by size.
    for size, _ in sizes(kit):
        needed[size].append((size, "products"))
    for size, _ in sizes_of_ops(kit):
        needed[size].append((f"bf16, {size}", "ops"))

    def make(part, name, size, flags):
        measured = kit.numbers_of(name, part)["seconds"]
        for of in needed[size]:
            kit.numbers_of(*of)
        said = fitting(lambda: kit.fsdp("simulate", *flags, "--world-size", 1, "--hardware", hardware(),
                                        "--json"))
        return prediction(json.loads(said)["step_time_s"], measured, judged)
    for part, name, size, flags in steps_to_predict(kit):
        yield f"{part} {name}", functools.partial(make, part, name, size, flags)

    yield "median", lambda: closing(kit.rows, judged)
