"""How fast PyTorch copies, multiplies and attends: what a kernel of ours is held against.

    python torch_ceilings.py [--device cuda] <TASKS.json

TASKS is a list of {"kind": "copy", "bytes"}, {"kind": "gemm", "m", "n", "k", "dtype"} and {"kind":
"attention", "batch", "seq", "heads", "groups", "head", "backend"}, which is causal and in bf16, with
`groups` heads of keys and values, by "flash" or "cudnn". Answers with a list of seconds, the median of
several calls each; of attention {"forward", "backward"}; or {"error"} where one has ended.
"""

import argparse
import json
import statistics
import sys
import time

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
BACKENDS = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION,
            "math": SDPBackend.MATH}


class Bench:
    def __init__(self, args):
        self.device, self.calls = torch.device(args.device), args.calls

    def seconds(self, work):
        """Median of a call's, on a GPU by its own clock, behind as many that do not count."""
        times = []
        for _ in range(2 * self.calls):
            if self.device.type == "cuda":
                begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                begin.record()
                work()
                end.record()
                times.append((begin, end))
            else:
                begin = time.perf_counter()
                work()
                times.append(time.perf_counter() - begin)
        if self.device.type == "cuda":
            torch.cuda.synchronize()
            times = [begin.elapsed_time(end) * 1e-3 for begin, end in times]
        return statistics.median(times[self.calls:])

    def random(self, *shape, dtype=torch.bfloat16):
        return torch.randn(shape, device=self.device, dtype=dtype)

    def copy(self, task):
        source = torch.zeros(task["bytes"], dtype=torch.uint8, device=self.device)
        target = torch.empty_like(source)
        return self.seconds(lambda: target.copy_(source))

    def gemm(self, task):
        dtype = DTYPES[task["dtype"]]
        a = self.random(task["m"], task["k"], dtype=dtype)
        b = self.random(task["n"], task["k"], dtype=dtype)
        out = torch.empty(task["m"], task["n"], device=self.device, dtype=dtype)
        return self.seconds(lambda: torch.mm(a, b.t(), out=out))

    def attention(self, task):
        def heads(number):
            return self.random(task["batch"], number, task["seq"], task["head"]).requires_grad_()

        q, k, v = heads(task["heads"]), heads(task["groups"]), heads(task["groups"])
        grouped = task["heads"] != task["groups"]

        def forward():
            return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=grouped)

        with sdpa_kernel(BACKENDS[task["backend"]]):
            forward_seconds = self.seconds(forward)
            out = forward()
            gradient = torch.randn_like(out)
            backward_seconds = self.seconds(
                lambda: torch.autograd.grad(out, (q, k, v), gradient, retain_graph=True))
        return {"forward": forward_seconds, "backward": backward_seconds}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    parser.add_argument("--calls", type=int, default=10)
    bench = Bench(parser.parse_args())
    answers = []
    for task in json.load(sys.stdin):
        try:
            answers.append(getattr(bench, task["kind"])(task))
        except (RuntimeError, KeyError) as error:
            answers.append({"error": str(error).splitlines()[0]})
    print(json.dumps(answers))


if __name__ == "__main__":
    main()
