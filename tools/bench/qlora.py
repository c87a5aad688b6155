"""A LoRA step over weights in bf16, nf4 and int8, ours and by transformers, peft and bitsandbytes, by
turns in one run.

    bazel build -c opt //cmd:fsdp-train
    $(tools/bench/setup) tools/bench/qlora.py [--model llama_100m] [--rounds 5] [--priority]

All begin with the same base and read the same samples; the first losses must agree, where adapters still
add nothing. bitsandbytes, peft and transformers must be installed beside torch.
"""

import argparse
import json
import pathlib
import sys

import step
import turns

RANK, ALPHA = 16, 32
SAME = 3e-3  # Relative, of first losses over one base: bf16's rounding.
FORMS = {"bf16": [], "nf4": ["model.lora.base=nf4"],
         "nf4, fp32 scales": ["model.lora.base=nf4", "model.lora.base_scales=fp32"],
         "int8": ["model.lora.base=int8"]}
PEERS = {"peft bf16": "none", "peft nf4": "nf4-nested"}


class Ours(step.Ours):
    def losses(self):
        return [r["loss"] for r in self.records[:1]]


class Peft(step.Torch):
    def start(self):
        step.PEERS[self.name] = ["--peft", PEERS[self.name], "--bf16", "autocast"]
        super().start()

    def losses(self):
        return [loss for loss, _ in self.checked[:1]]


def check_same_base(participants):
    for pair in (("bf16", "peft bf16"), ("nf4", "peft nf4")):
        losses = [p.losses()[0] for p in participants if p.name in pair]
        if len(losses) == 2 and step.difference(*losses) > SAME:
            sys.exit(f"not the same base: first losses {losses} of {' and '.join(pair)}")


def run(args, directory):
    bench = step.Bench(args, directory)
    lora = [f"model.lora.rank={RANK}", f"model.lora.alpha={ALPHA}"]
    bench.shape["lora"] = {"rank": RANK, "alpha": ALPHA, "dropout": 0.0}
    participants = [Ours(bench, name, 1, args.threads, lora + extra) for name, extra in FORMS.items()]
    participants += [Peft(bench, name, 1, args.threads) for name in args.against]
    for participant in participants:
        print(f"starting {participant.name}", file=sys.stderr, flush=True)
        participant.start()
        participant.warm_up()
    check_same_base(participants)
    times = turns.alternate(participants, args.rounds)
    for participant in participants:
        participant.peak_bytes = participant.peak()
        participant.stop()
    rows = step.summarise(participants, times)
    step.print_table(rows)
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps(rows))


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="llama_100m")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--against", nargs="*", default=list(PEERS), choices=list(PEERS))
    parser.add_argument("--turn-seconds", type=float, default=1.0)
    parser.add_argument("--priority", action="store_true", help="as in step.py")
    parser.add_argument("--python", default=sys.executable, help="the Python that has torch")
    parser.add_argument("--binary", default=step.BINARY, type=pathlib.Path)
    parser.add_argument("--json", metavar="FILE", help="everything that was measured")
    args = parser.parse_args()
    args.set = [f"{step.PARAM_DTYPE}=bf16", "fsdp.mixed_precision.master_dtype=bf16"]
    turns.run_in_directory(args, run)


if __name__ == "__main__":
    main()
