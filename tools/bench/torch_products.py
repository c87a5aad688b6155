"""PyTorch's matrix products and attention, one at a time when told: the peer in products.py.

Each line of standard input is a task in JSON. It is called again and again for `seconds`, three times at
least, and answered with {"seconds": [of each time]}; the first task that is alike creates the tensors.
  {"kind": "forward" | "dx" | "dw", "m", "n", "k", "dtype", "count"}   torch.mm of `count` calls a time, into
      a tensor that is there: what linear and its backward pass call, without their allocations
      forward  [m, k] by the transpose of [n, k]: a layer's weights are [out, in]
      dx       [m, k] by [k, n]
      dw       the transpose of [k, m] by [k, n]
  {"kind": "attention_forward" | "attention_backward", "batch", "seq", "heads", "head_size", "dtype"}
      scaled_dot_product_attention, causal, of a model's [batch, seq, 3, heads, head_size]
"""

import argparse
import json
import sys
import time

import torch
import torch.nn.functional as F

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def values(*shape, dtype):
    """As large as those of ours."""
    return torch.empty(shape).uniform_(-0.051, 0.051).to(dtype)


def product(task):
    m, n, k, dtype = task["m"], task["n"], task["k"], DTYPES[task["dtype"]]
    a = values(k, m, dtype=dtype).t() if task["kind"] == "dw" else values(m, k, dtype=dtype)
    b = values(n, k, dtype=dtype).t() if task["kind"] == "forward" else values(k, n, dtype=dtype)
    c = torch.empty(m, n, dtype=dtype)

    def call():
        for _ in range(task["count"]):
            torch.mm(a, b, out=c)
    return call


def attention(task):
    qkv = values(task["batch"], task["seq"], 3, task["heads"], task["head_size"],
                 dtype=DTYPES[task["dtype"]])
    q, k, v = (part.transpose(1, 2).detach() for part in qkv.unbind(2))

    def forward():
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    if task["kind"] == "attention_forward":
        return forward
    for part in (q, k, v):
        part.requires_grad_()
    out = forward()
    gradient = torch.rand_like(out)
    return lambda: torch.autograd.grad(out, (q, k, v), gradient, retain_graph=True)


def time_calls(call, seconds):
    times = []
    start = time.perf_counter()
    while len(times) < 3 or time.perf_counter() - start < seconds:
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return times


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, required=True)
    torch.set_num_threads(parser.parse_args().threads)
    print(json.dumps({"torch": torch.__version__}), flush=True)
    calls = {}
    for line in sys.stdin:
        task = json.loads(line)
        seconds = task.pop("seconds")
        key = json.dumps(task, sort_keys=True)
        if key not in calls:
            calls[key] = attention(task) if task["kind"].startswith("attention") else product(task)
        print(json.dumps({"seconds": time_calls(calls[key], seconds)}), flush=True)


if __name__ == "__main__":
    main()
