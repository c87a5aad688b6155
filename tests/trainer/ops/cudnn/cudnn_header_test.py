#!/usr/bin/env python3
"""Checks the enumerations of trainer/ops/cudnn/cudnn_api.h against the header of cuDNN."""

import os
import pathlib
import re
import unittest

OURS = pathlib.Path("trainer/ops/cudnn/cudnn_api.h")
PLACES = [os.environ.get("CUDA_HOME") or "/usr/local/cuda", "/usr"]

# A name of ours is the header's without this, and without underscores: kTensorDimensions of
# Attribute is CUDNN_ATTR_TENSOR_DIMENSIONS.
AROUND = {
    "DescriptorType": ("CUDNN_BACKEND_", "_DESCRIPTOR"),
    "Attribute": ("CUDNN_ATTR_", ""),
    "AttributeType": ("CUDNN_TYPE_", ""),
    "DataType": ("CUDNN_DATA_", ""),
    "PointwiseMode": ("CUDNN_POINTWISE_", ""),
    "ConvolutionMode": ("CUDNN_", ""),
    "ReduceTensorOp": ("CUDNN_REDUCE_TENSOR_", ""),
    "HeurMode": ("CUDNN_HEUR_MODE_", ""),
    "NumericalNote": ("CUDNN_NUMERICAL_NOTE_", ""),
}


def ours():
    for enum, body in re.findall(r"enum class (\w+) : int \{(.*?)\};", OURS.read_text(), re.S):
        for name, value in re.findall(r"\bk(\w+) = (\d+)", body):
            yield enum, name, int(value)


class CudnnHeader(unittest.TestCase):
    def test_values_are_its(self):
        headers = [pathlib.Path(place, "include/cudnn_graph.h") for place in PLACES]
        header = next((file for file in headers if file.exists()), None)
        if header is None:
            self.skipTest("no cudnn_graph.h in " + ", ".join(str(file.parent) for file in headers))
        values = {name: int(value) for name, value in
                  re.findall(r"\b(CUDNN_\w+)(?:\s+CUDNN_DEPRECATED_ENUM)?\s*=\s*(\d+)", header.read_text())}
        compared = 0
        for enum, name, value in ours():
            before, behind = AROUND[enum]
            same = [theirs for theirs in values
                    if theirs.startswith(before) and theirs.endswith(behind) and
                    theirs[len(before):len(theirs) - len(behind)].replace("_", "").lower() == name.lower()]
            self.assertEqual([values[theirs] for theirs in same], [value], f"{enum}::k{name}: {same}")
            compared += 1
        self.assertGreater(compared, 80)


if __name__ == "__main__":
    unittest.main()
