"""The paper's numbers before anything is fitted: a calculation and its numbers for each sentence."""

import statistics

import machine
import points

LAYER = 12 * 12288 ** 2 + 13 * 12288
PARAMETERS = 96 * LAYER + (2 * 50000 + 2048) * 12288


def slope(xs, ys):
    mx, my = statistics.mean(xs), statistics.mean(ys)
    return sum((x - mx) * (y - my) for x, y in zip(xs, ys)) / sum((x - mx) ** 2 for x in xs)


def flops_of(program, run):
    """FLOPs of a GPU's step, recomputation included: a count, no time."""
    result = program.simulate(run)
    return result["hardware_tflops_per_device"] * 1e12 * result["step_time_s"]


def facts(paper, program, hardware):
    return [fact for part in (sequences(paper, program), prefetch(paper, program, hardware),
                              flat(paper), memory(paper), others(paper, program)) for fact in part]


def sequences(paper, program):
    b = paper["fig7b_gpt175b_tflops_per_gpu"]
    flops = {n: flops_of(program, points.Run("mingpt-175b", 256, n)) for n in (1, 2)}
    second, constant = [], []
    for world, one, two in zip(b["gpus"], b["batch_1"], b["batch_2"]):
        t1, t2 = flops[1] / one / 1e12, flops[2] / two / 1e12
        if (f"7b batch_2 {world}") != points.RETRIES:
            second.append(t2 - t1)
            constant.append(2 * t1 - t2)
    rate = (flops[2] - flops[1]) / statistics.mean(second) / 1e12
    yield ("TFLOPS count recomputation: a second sequence costs "
           f"{min(second):.1f} to {max(second):.1f} s for {(flops[2] - flops[1]) / 1e15:.2f} PFLOP with it, "
           f"{rate:.0f} TFLOPS. A step takes {statistics.mean(second):.1f} s a sequence and "
           f"{min(constant):.1f} to {max(constant):.1f} s besides.")
    ours = [program.simulate(points.Run("mingpt-175b", 256, n))["step_time_s"] for n in (1, 2)]
    yield (f"Ours at 256 GPUs takes {ours[1] - ours[0]:.1f} s a sequence and {2 * ours[0] - ours[1]:.1f} s "
           "besides.")


def prefetch(paper, program, hardware):
    b = paper["fig6b_gpt175b_tflops_per_gpu"]
    flops = flops_of(program, points.Run("mingpt-175b", 256, 1))
    costs = [flops / none / 1e12 - flops / with_it / 1e12
             for with_it, none in zip(b["backward_prefetch"], b["no_prefetch"])]
    per_host = machine.number_of(hardware, "network.ranks_per_host")
    step = ((per_host - 1) * machine.number_of(hardware, "network.inside.ring_step_s") +
            machine.number_of(hardware, "network.between.ring_step_s")) / per_host
    worlds = b["gpus"]
    yield (f"No prefetch costs {', '.join(f'{c:.2f}' for c in costs)} s on {', '.join(map(str, worlds))} GPUs. "
           f"Steps of a ring take {step * 1e6:.1f} us in the mean; for 96 gathers and 96 reductions those "
           f"of {worlds[-1] - worlds[0]} GPUs more come to {192 * step * (worlds[-1] - worlds[0]):.2f} s, and "
           f"the paper's growth is {costs[-1] - costs[0]:.2f} s.")


def flat(paper):
    lines = {}
    for name in points.SEEN_MORE:
        v = points.named(name)
        lines[v.figure] = machine.paper_of(v, paper)
    off = [abs(lines[v.figure] / machine.paper_of(v, paper) - 1) for v in points.judged(points.SEEN_MORE)]
    yield ("6b and 7b are nearly flat: flat lines through three points are off by "
           f"{statistics.median(off):.1%} in the median of 6b, 7b and 7c, {max(off):.1%} at most.")


def memory(paper):
    b = paper["fig8b_gpt175b_peak_gb"]
    out = {}
    for unit, name in ((1e9, "GB"), (2 ** 30, "GiB")):
        out[name] = [slope([PARAMETERS / w for w in b["gpus"]], [y * unit for y in b[batch][kind]])
                     for batch in ("batch_1", "batch_2") for kind in points.KINDS
                     if (batch, kind) != ("batch_2", "reserved")]
    yield ("8b falls by bytes a parameter of a rank's shard, curve by curve: with GB of 1e9 "
           + ", ".join(f"{x:.1f}" for x in out["GB"]) + "; with GiB "
           + ", ".join(f"{x:.1f}" for x in out["GiB"])
           + ". fp32 master, gradient and two moments are 16: GB are 1e9.")


def others(paper, program):
    c = paper["fig8c_t5_11b_peak_gb"]
    rises = [(b16 - b8) / 8 for b8, b16 in zip(c["batch_8"]["allocated"], c["batch_16"]["allocated"])]
    ours = [program.simulate(points.Run("t5-11b", 64, n))["memory"]["allocated_peak"] / 1e9 for n in (8, 16)]
    yield (f"8c rises by {statistics.median(rises):.1f} GB a sequence; ours, with one layer computed again "
           f"at a time, by {(ours[1] - ours[0]) / 8:.1f}.")
    flops = flops_of(program, points.Run("t5-11b", 16, 8)) / 8
    seconds = paper["fig6c_seconds_per_batch"]["t5_11b"]["2_hosts_batch_2"]["limit"]
    tflops = paper["fig7c_t5_11b_tflops_per_gpu"]["batch_8"][points.T5_WORLDS.index(16)]
    yield (f"6c's T5-11B cannot be 7c's: two samples take {seconds:.2f} s on 16 GPUs, "
           f"{2 * flops / seconds / 1e12:.0f} TFLOPS, and in 7c eight take {8 * flops / tflops / 1e12:.2f} s.")
    t5 = paper["fig6a_tflops_per_gpu"]["t5_2.28b"]["full_shard"]
    yield f"6a has {t5} TFLOPS for T5-2.28B in fp32, more than an A100's 19.5 without tensor cores: TF32."
    ms = paper["fig2b_total_ms_for_2pow30_fp32"]["ms"][0]
    yield (f"2b gathers 4 GiB in {ms} ms: {2 ** 32 / ms / 1e6:.1f} GB/s, where 2 Tb/s a host would be 250: "
           "another network.")
