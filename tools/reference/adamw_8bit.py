#!/usr/bin/env python3
"""Writes tests/fixtures/optimizers/adamw_8bit.txt: the values of codes, and steps of AdamW8bit.

    pip install torch torchao==0.18 bitsandbytes==0.50.2
    tools/reference/adamw_8bit.py > tests/fixtures/optimizers/adamw_8bit.txt

Values: create_dynamic_map of bitsandbytes and torchao, which must be the same, as bits of fp32.
Steps: 20 of torchao.optim.AdamW8bit (blocks of 256) over 4096 elements; the first 512 of the
parameter, bits of fp32, and both moments' indices in their sorted values. Element i begins as
Mixed(i, 0), and step s has the gradient Mixed(i, s) * 2^(-i % 7).
"""

import numpy
import torch
import torchao.optim
from bitsandbytes.functional import create_dynamic_map
from torchao.optim.quant_utils import create_dynamic_map as create_dynamic_map_of_torchao

ELEMENTS, SHOWN, STEPS = 4096, 512, 20


def mixed(step):
    """A number of [-1, 1) for each element, exact in fp32."""
    index = numpy.arange(ELEMENTS, dtype=numpy.uint64)
    word = (index * 2654435761 + numpy.uint64(step * 40503 + 12345)) % (1 << 32)
    word = (word ^ (word >> numpy.uint64(15))) * 2246822519 % (1 << 32)
    return torch.tensor(((word >> numpy.uint64(16)).astype(numpy.float32) - 32768) / 32768)


def line(name, values):
    print(name, *(f"{v:x}" for v in values))


def bits(values):
    return values.detach().numpy().astype(numpy.float32).view(numpy.uint32)


def main():
    torch.compile = lambda function, **_: function  # The same operations, one by one.
    for name, sign in (("signed", True), ("unsigned", False)):
        values = create_dynamic_map(sign)
        assert torch.equal(values, torch.tensor(create_dynamic_map_of_torchao(sign)))
        line(name, bits(values))
    parameter = torch.nn.Parameter(mixed(0))
    optimizer = torchao.optim.AdamW8bit(
        [parameter], lr=0.01, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1, block_size=256)
    scale = torch.tensor([2.0 ** -(i % 7) for i in range(ELEMENTS)])
    for step in range(1, STEPS + 1):
        parameter.grad = mixed(step) * scale
        optimizer.step()
    line("p", bits(parameter)[:SHOWN])
    state = optimizer.state[parameter]
    line("m", state["exp_avg"].codes.numpy().reshape(-1)[:SHOWN])
    line("v", state["exp_avg_sq"].codes.numpy().reshape(-1)[:SHOWN])


if __name__ == "__main__":
    main()
