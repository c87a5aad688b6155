"""T5, ViT, RegNet and DHEN in PyTorch, with what a benchmark feeds them.

T5, ViT and RegNet are transformers' models; DHEN is that of tools/reference/dhen.py, with PyTorch's
attention in place of written softmax, and with embedding tables of sparse gradients. Every model gives
the mean loss of a batch. Dropout is off.
"""

import json
import pathlib
import sys

import numpy as np
import safetensors.torch
import torch
import torch.nn.functional as F
from torch import nn

SAMPLES = 64  # Samples that a benchmark draws: of T5 and of images. Batches begin anew behind them.
CLICKS = 8192


class Family(nn.Module):
    """A model, its initial weights and its data in a directory."""

    def blocks(self):
        """The modules that FSDP2 shards."""
        raise NotImplementedError

    def save(self, directory):
        """Writes the weights as Hugging Face keeps them. Makes the directory."""
        self.model.save_pretrained(directory)

    def load(self, directory):
        self.model.load_state_dict(
            type(self.model).from_pretrained(directory, dtype=torch.float32).state_dict())
        self.model.train()

    @staticmethod
    def write_data(shape, recipe, directory):
        """Writes random samples, for us and as samples.npz for PyTorch."""
        raise NotImplementedError

    def read_data(self, directory, channels_last=False):
        """Tensors [samples, ...], in the order of forward's arguments."""
        with np.load(pathlib.Path(directory) / "samples.npz") as file:
            return [torch.from_numpy(file[name]) for name in self.INPUTS]

    def update_tables(self, lr):
        """Updates what lies outside the optimizer, if anything does."""


class T5(Family):
    """forward: input_ids [batch, seq_len], labels [batch, target_len]; int64."""

    INPUTS = ("inputs", "targets")

    def __init__(self, shape):
        super().__init__()
        import transformers
        self.model = transformers.T5ForConditionalGeneration(transformers.T5Config(
            vocab_size=shape["vocab_size"], d_model=shape["hidden_size"], d_kv=shape["head_dim"],
            d_ff=shape["intermediate_size"], num_layers=shape["num_hidden_layers"],
            num_decoder_layers=shape["num_decoder_layers"],
            num_heads=shape["num_attention_heads"],
            relative_attention_num_buckets=shape["relative_attention_num_buckets"],
            relative_attention_max_distance=shape["relative_attention_max_distance"],
            layer_norm_epsilon=shape["rms_norm_eps"], dropout_rate=0.0,
            feed_forward_proj="gated-gelu" if shape["gated_mlp"] else "relu",
            tie_word_embeddings=True, decoder_start_token_id=0))

    def blocks(self):
        return [*self.model.encoder.block, *self.model.decoder.block]

    def forward(self, inputs, targets):
        return self.model(input_ids=inputs, labels=targets, use_cache=False).loss

    @staticmethod
    def write_data(shape, recipe, directory):
        """Lines of ASCII, which fill both lengths: nothing is padded."""
        random = np.random.default_rng(2)
        eot = recipe["data"]["train"]["eot"]
        rows = {}
        for name, length in (("inputs", recipe["data"]["seq_len"]),
                             ("targets", recipe["data"]["target_len"])):
            # Some bytes often and most of them seldom, as in a text.
            rows[name] = 32 + (95 * random.random((SAMPLES, length)) ** 2).astype(np.int64)
            rows[name][:, -1] = eot
        np.savez(directory / "samples.npz", **rows)
        with open(directory / "pairs.jsonl", "w") as file:
            for pair in zip(rows["inputs"], rows["targets"]):
                texts = (bytes(row[:-1].tolist()).decode() for row in pair)
                file.write(json.dumps(dict(zip(("input", "target"), texts))) + "\n")


class Images(Family):
    """forward: pixels [batch, channels, height, width], labels [batch]."""

    INPUTS = ("images", "labels")

    def forward(self, pixels, labels):
        return F.cross_entropy(self.model(pixels).logits, labels)

    @staticmethod
    def write_data(shape, recipe, directory):
        random = np.random.default_rng(2)
        size, channels = shape["image_size"], shape["num_channels"]
        images = random.integers(0, 256, (SAMPLES, size, size, channels), dtype=np.uint8)
        labels = random.integers(0, min(256, shape["num_labels"]), SAMPLES)
        np.savez(directory / "samples.npz", images=images, labels=labels)
        for name, values in (("images.idx", images), ("labels.idx", labels.astype(np.uint8))):
            header = bytes([0, 0, 8, values.ndim]) + np.array(values.shape, ">i4").tobytes()
            (directory / name).write_bytes(header + values.tobytes())

    def read_data(self, directory, channels_last=False):
        images, labels = super().read_data(directory)
        layout = torch.channels_last if channels_last else torch.contiguous_format
        pixels = (images.permute(0, 3, 1, 2).float() / 255 - 0.5) / 0.5
        return [pixels.contiguous(memory_format=layout), labels]


class Vit(Images):
    def __init__(self, shape):
        super().__init__()
        import transformers
        self.model = transformers.ViTForImageClassification(transformers.ViTConfig(
            hidden_size=shape["hidden_size"], num_hidden_layers=shape["num_hidden_layers"],
            num_attention_heads=shape["num_attention_heads"],
            intermediate_size=shape["intermediate_size"], image_size=shape["image_size"],
            patch_size=shape["patch_size"], num_channels=shape["num_channels"],
            num_labels=shape["num_labels"], layer_norm_eps=shape["layer_norm_epsilon"],
            qkv_bias=shape["qkv_bias"], initializer_range=shape["initializer_range"]))

    def blocks(self):
        return self.model.vit.layers


class RegNet(Images):
    def __init__(self, shape):
        super().__init__()
        import transformers
        self.model = transformers.RegNetForImageClassification(transformers.RegNetConfig(
            num_channels=shape["num_channels"], embedding_size=shape["embedding_size"],
            hidden_sizes=shape["hidden_sizes"], depths=shape["depths"],
            groups_width=shape["groups_width"],
            layer_type="y" if shape["squeeze_excitation"] else "x",
            downsample_in_first_stage=shape["downsample_in_first_stage"],
            num_labels=shape["num_labels"], image_size=shape["image_size"]))

    def blocks(self):
        return [layer for stage in self.model.regnet.encoder.stages for layer in stage.layers]


def reference_dhen():
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "reference"))
    import dhen
    return dhen


class Dhen(Family):
    """forward: numbers [batch, dense_columns], ids [batch, tables], labels [batch].

    The tables are one embedding, the ids of a column behind those of the column before. Their rows are
    updated by row-wise Adagrad (trainer/ops/row_adagrad.h), as FBGEMM updates them.
    """

    INPUTS = ("numbers", "ids", "labels")

    def __init__(self, shape):
        super().__init__()
        dhen = reference_dhen()
        rows = shape["table_rows"]
        self.shape, self.case = shape, dhen.Case(
            "bench", 1, shape["dense_columns"], len(rows), shape["table_width"],
            shape["dense_vectors"], shape["num_vectors"], shape["num_hidden_layers"],
            shape["num_attention_heads"], shape["cross_rank"], shape["intermediate_size"],
            shape["layer_norm_epsilon"], masked=False)
        self.model = dhen.Dhen(self.case)
        for layer in self.model.layers:
            n = layer.linear.weight.shape[1]
            i, j = torch.tril_indices(n, n, -1)
            layer.register_buffer("pairs", i * n + j, persistent=False)
            layer.forward = lambda x, layer=layer: dhen_layer(layer, x)
        # Outside of parameters(): neither the optimizer nor clipping knows the tables.
        begins = np.cumsum([0, *rows[:-1]])
        self.register_buffer("begins", torch.from_numpy(begins), persistent=False)
        self.outside = [torch.zeros(sum(rows), shape["table_width"], requires_grad=True),
                        torch.zeros(sum(rows))]

    def blocks(self):
        return self.model.layers

    def forward(self, numbers, ids, labels):
        vectors = F.embedding(ids + self.begins, self.outside[0], sparse=True)
        logits = self.model(numbers, vectors)
        return F.binary_cross_entropy_with_logits(logits.flatten(), labels)

    def compile(self):
        self.model.compile()  # Without the tables: torch.compile has no sparse gradients.

    @torch.no_grad()
    def update_tables(self, lr, eps=1e-8):
        table, sums = self.outside
        grad = table.grad.coalesce()
        rows, values = grad.indices()[0], grad.values()
        new = sums[rows] + values.square().mean(1)
        sums[rows] = new
        table.index_add_(0, rows, values * (-lr / (new.sqrt() + eps))[:, None])
        table.grad = None

    def save(self, directory):
        generator = torch.Generator().manual_seed(torch.initial_seed())
        for name, p in self.model.named_parameters():
            if p.dim() > 1:
                p.data.normal_(0, (3 * p[0].numel()) ** -0.5, generator=generator)
            else:
                p.data.fill_(1.0 if name.endswith("norm.weight") else 0.0)
        self.outside[0].data.normal_(0, self.shape["table_width"] ** -0.5, generator=generator)
        self.model.save_pretrained(directory)
        config = json.loads((directory / "config.json").read_text())
        config |= {key: self.shape[key] for key in ("table_rows", "table_bags", "table_capacity")}
        (directory / "config.json").write_text(json.dumps(config))
        parts = torch.split(self.outside[0].detach(), self.shape["table_rows"])
        weights = self.model.state_dict() | {
            f"tables.{i}.weight": part.contiguous() for i, part in enumerate(parts)}
        safetensors.torch.save_file(weights, directory / "model.safetensors",
                                    metadata={"format": "pt"})

    def load(self, directory):
        weights = safetensors.torch.load_file(pathlib.Path(directory) / "model.safetensors")
        tables = [weights.pop(f"tables.{i}.weight") for i in range(self.case.tables)]
        self.outside[0].data.copy_(torch.cat(tables))
        self.model.load_state_dict(weights)

    @staticmethod
    def write_data(shape, recipe, directory):
        random = np.random.default_rng(2)
        numbers = random.standard_normal((CLICKS, shape["dense_columns"])).round(3).astype(np.float32)
        # Some ids often and most of them seldom.
        ids = np.stack([rows * random.random(CLICKS) ** 3 for rows in shape["table_rows"]],
                       axis=1).astype(np.int64)
        labels = random.integers(0, 2, CLICKS)
        np.savez(directory / "samples.npz", numbers=numbers, ids=ids,
                 labels=labels.astype(np.float32))
        source = recipe["data"]["train"]
        with open(directory / "clicks.csv", "w") as file:
            file.write(",".join([source["label"], *source["dense"], *source["categorical"]]) + "\n")
            for label, row, of in zip(labels, numbers, ids):
                cells = [str(label), *(f"{x:.3f}" for x in row), *map(str, of)]
                file.write(",".join(cells) + "\n")


def dhen_layer(layer, x):
    """Layer.forward of tools/reference/dhen.py with fused attention and one index a pair."""
    c, (rows, n, d) = layer.case, x.shape
    total = layer.linear.weight @ x + layer.linear.bias[:, None]
    q, k, v = (part.unflatten(-1, (c.heads, d // c.heads)).transpose(1, 2)
               for part in layer.attention.qkv(x).chunk(3, dim=-1))
    attended = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(-2)
    total = total + layer.attention.mix.weight @ layer.attention.out(attended)
    convolved = F.conv1d(x.transpose(1, 2), layer.convolution.weight[..., 0], padding=1)
    total = total + layer.convolution.mix.weight @ convolved.transpose(1, 2).relu()
    gate = layer.cross.up(layer.cross.down(x.flatten(1))).unflatten(-1, (n, d))
    total = total + layer.cross.mix.weight @ (x * gate)
    dots = (x @ x.transpose(1, 2)).flatten(1).index_select(1, layer.pairs) * d**-0.5
    total = total + layer.dot(dots).unflatten(-1, (c.vectors, d))
    total = total + (x if layer.shortcut is None else layer.shortcut.weight @ x)
    return layer.norm(total)


FAMILIES = {"t5": T5, "vit": Vit, "regnet": RegNet, "dhen": Dhen}
