"""DeepSpeed's AdamW on the CPU: the peer in host_adamw.py.

    deepspeed_adamw.py KIND ELEMENTS THREADS

Reads and answers as adamw_bench.cc. The first start compiles DeepSpeed's kernel for this machine.
"""

import json
import os
import sys
import time

answers = os.fdopen(os.dup(1), "w", buffering=1)
os.dup2(2, 1)  # Whatever is printed on the way.
os.environ["THP_MEM_ALLOC_ENABLE"] = "1"  # Large pages, as ours.

import deepspeed  # noqa: E402
import torch  # noqa: E402
from deepspeed.ops.adam import DeepSpeedCPUAdam  # noqa: E402


def values(n, period, scale, dtype):
    """In pieces: their integers have 8 bytes each."""
    x = torch.empty(n, dtype=dtype)
    for begin in range(0, n, 1 << 20):
        i = torch.arange(begin, min(n, begin + (1 << 20)))
        x[begin:begin + len(i)] = (i % period - period // 2).float() * scale
    return x


class Bench:
    def __init__(self, kind, n):
        dtype = torch.bfloat16 if kind == "bf16" else torch.float32
        self.p = torch.nn.Parameter(values(n, 1021, 1e-3, dtype))
        self.p.grad = values(n, 1019, 1e-4, dtype)
        # As ZeRO-Offload does it: the step is one pass, the copy for the device another.
        self.copy = torch.zeros(n, dtype=torch.bfloat16) if kind == "bf16-copy" else None
        self.optimizer = DeepSpeedCPUAdam([self.p], lr=1e-3, betas=(0.9, 0.95), eps=1e-8,
                                          weight_decay=0.1, adamw_mode=True)

    @torch.no_grad()
    def step(self):
        begin = time.perf_counter()
        self.optimizer.step()
        if self.copy is not None:
            self.copy.copy_(self.p)
        return time.perf_counter() - begin

    @torch.no_grad()
    def turn(self, steps):
        self.step()
        seconds = [self.step() for _ in range(steps)]
        sums = [0 if x is None else x[::97].double().abs().sum().item() for x in (self.p, self.copy)]
        return {"seconds": seconds, "sums": sums,
                "version": f"DeepSpeed {deepspeed.__version__}, PyTorch {torch.__version__}"}


def main():
    kind, n, threads = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(threads)
    bench = Bench(kind, n)
    for line in sys.stdin:
        answers.write(json.dumps(bench.turn(int(line))) + "\n")


if __name__ == "__main__":
    main()
