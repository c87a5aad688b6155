"""GPT-2, Llama and Qwen2 in plain PyTorch, with the names of Hugging Face files.

The code is as a careful user writes it: fused attention, one linear layer for q, k and v where the
file has one, and the loss inside forward(), so that torch.compile sees it; in fp32 whatever the
model's dtype. No library but torch.
"""

import torch
import torch.nn.functional as F
from torch import nn


class Gpt2Attention(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.heads = shape["num_attention_heads"]
        self.c_attn = nn.Linear(shape["hidden_size"], 3 * shape["hidden_size"])
        self.c_proj = nn.Linear(shape["hidden_size"], shape["hidden_size"])

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = (part.view(batch, length, self.heads, -1).transpose(1, 2)
                   for part in self.c_attn(x).split(width, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(y.transpose(1, 2).reshape(batch, length, width))


class Gpt2Mlp(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.c_fc = nn.Linear(shape["hidden_size"], shape["intermediate_size"])
        self.c_proj = nn.Linear(shape["intermediate_size"], shape["hidden_size"])

    def forward(self, x):
        return self.c_proj(F.gelu(self.c_fc(x), approximate="tanh"))


class Gpt2Block(nn.Module):
    def __init__(self, shape):
        super().__init__()
        epsilon = shape["layer_norm_epsilon"]
        self.ln_1 = nn.LayerNorm(shape["hidden_size"], eps=epsilon)
        self.attn = Gpt2Attention(shape)
        self.ln_2 = nn.LayerNorm(shape["hidden_size"], eps=epsilon)
        self.mlp = Gpt2Mlp(shape)

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class Gpt2(nn.Module):
    # Hugging Face keeps these [in, out].
    TRANSPOSED = ("c_attn.weight", "c_proj.weight", "c_fc.weight")

    def __init__(self, shape):
        super().__init__()
        width = shape["hidden_size"]
        self.wte = nn.Embedding(shape["vocab_size"], width)
        self.wpe = nn.Embedding(shape["max_position_embeddings"], width)
        self.h = nn.ModuleList(Gpt2Block(shape) for _ in range(shape["num_hidden_layers"]))
        self.ln_f = nn.LayerNorm(width, eps=shape["layer_norm_epsilon"])
        self.lm_head = None if shape.get("tie_word_embeddings", True) else nn.Linear(
            width, shape["vocab_size"], bias=False)

    def blocks(self):
        return self.h

    def forward(self, tokens, targets):
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.wte(tokens) + self.wpe(positions)
        for block in self.h:
            x = block(x)
        head = self.wte if self.lm_head is None else self.lm_head
        logits = F.linear(self.ln_f(x), head.weight)
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())

    @staticmethod
    def config(shape):
        return {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"],
                "vocab_size": shape["vocab_size"], "n_embd": shape["hidden_size"],
                "n_layer": shape["num_hidden_layers"], "n_head": shape["num_attention_heads"],
                "n_inner": shape["intermediate_size"],
                "n_positions": shape["max_position_embeddings"],
                "layer_norm_epsilon": shape["layer_norm_epsilon"],
                "activation_function": "gelu_new", "resid_pdrop": 0.0, "embd_pdrop": 0.0,
                "attn_pdrop": 0.0, "tie_word_embeddings": shape.get("tie_word_embeddings", True),
                "initializer_range": shape["initializer_range"]}

    @staticmethod
    def file_name(name):
        return name if name.startswith("lm_head.") else "transformer." + name


def rotate(x, cos, sin):
    """Rotary positions over the two halves of a head, as Llama's files have them."""
    low, high = x.chunk(2, dim=-1)
    return (x * cos + torch.cat((-high, low), dim=-1) * sin).to(x.dtype)


class LlamaAttention(nn.Module):
    def __init__(self, shape):
        super().__init__()
        width, self.head = shape["hidden_size"], shape["head_dim"]
        heads, groups = shape["num_attention_heads"], shape["num_key_value_heads"]
        self.grouped = groups != heads
        bias = bool(shape.get("attention_bias"))
        self.q_proj = nn.Linear(width, heads * self.head, bias=bias)
        self.k_proj = nn.Linear(width, groups * self.head, bias=bias)
        self.v_proj = nn.Linear(width, groups * self.head, bias=bias)
        self.o_proj = nn.Linear(heads * self.head, width, bias=False)

    def forward(self, x, cos, sin):
        batch, length, _ = x.shape
        q, k, v = (layer(x).view(batch, length, -1, self.head).transpose(1, 2)
                   for layer in (self.q_proj, self.k_proj, self.v_proj))
        y = F.scaled_dot_product_attention(rotate(q, cos, sin), rotate(k, cos, sin), v,
                                           is_causal=True, enable_gqa=self.grouped)
        return self.o_proj(y.transpose(1, 2).reshape(batch, length, -1))


class LlamaMlp(nn.Module):
    def __init__(self, shape):
        super().__init__()
        width, inner = shape["hidden_size"], shape["intermediate_size"]
        self.gate_proj = nn.Linear(width, inner, bias=False)
        self.up_proj = nn.Linear(width, inner, bias=False)
        self.down_proj = nn.Linear(inner, width, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class LlamaBlock(nn.Module):
    def __init__(self, shape):
        super().__init__()
        width, epsilon = shape["hidden_size"], shape["rms_norm_eps"]
        self.input_layernorm = nn.RMSNorm(width, eps=epsilon)
        self.self_attn = LlamaAttention(shape)
        self.post_attention_layernorm = nn.RMSNorm(width, eps=epsilon)
        self.mlp = LlamaMlp(shape)

    def forward(self, x, cos, sin):
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))


class Llama(nn.Module):
    TRANSPOSED = ()

    def __init__(self, shape):
        super().__init__()
        width, head = shape["hidden_size"], shape["head_dim"]
        self.embed_tokens = nn.Embedding(shape["vocab_size"], width)
        self.layers = nn.ModuleList(LlamaBlock(shape) for _ in range(shape["num_hidden_layers"]))
        self.norm = nn.RMSNorm(width, eps=shape["rms_norm_eps"])
        self.lm_head = None if shape.get("tie_word_embeddings") else nn.Linear(
            width, shape["vocab_size"], bias=False)
        positions = torch.arange(shape["max_position_embeddings"], dtype=torch.float64)
        powers = torch.arange(0, head, 2, dtype=torch.float64) / head
        angles = positions[:, None] * shape["rope_theta"] ** -powers
        angles = torch.cat((angles, angles), dim=-1)
        self.register_buffer("cos", angles.cos().float(), persistent=False)
        self.register_buffer("sin", angles.sin().float(), persistent=False)

    def blocks(self):
        return self.layers

    def forward(self, tokens, targets):
        x = self.embed_tokens(tokens)
        cos, sin = self.cos[: tokens.shape[1]], self.sin[: tokens.shape[1]]
        for block in self.layers:
            x = block(x, cos, sin)
        head = self.embed_tokens if self.lm_head is None else self.lm_head
        logits = F.linear(self.norm(x), head.weight)
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())

    @staticmethod
    def config(shape):
        names = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
                 "num_attention_heads", "num_key_value_heads", "head_dim", "rms_norm_eps",
                 "rope_theta", "max_position_embeddings", "initializer_range")
        family = ({"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]}
                  if shape.get("attention_bias") else
                  {"model_type": "llama", "architectures": ["LlamaForCausalLM"],
                   "attention_bias": False, "mlp_bias": False})
        return {**family, "hidden_act": "silu",
                "tie_word_embeddings": bool(shape.get("tie_word_embeddings")),
                **{name: shape[name] for name in names}}

    @staticmethod
    def file_name(name):
        return name if name.startswith("lm_head") else "model." + name


FAMILIES = {"gpt2": Gpt2, "llama": Llama}
OF_LIBRARIES = ("t5", "vit", "regnet", "dhen")  # torch_families.py


def make(shape, experts="eager"):
    """A model of the recipe's `model` section as `config print` resolves it. Weights are what
    PyTorch's layers begin with: load_state_dict() gives them their values."""
    if shape["family"] == "moe":
        import torch_moe  # Needs more than torch.
        return torch_moe.Moe(shape, experts)
    if shape["family"] in OF_LIBRARIES:
        import torch_families  # Needs more than torch.
        return torch_families.FAMILIES[shape["family"]](shape)
    if shape["family"] not in FAMILIES:
        raise SystemExit(f"there is no PyTorch model of family {shape['family']} here")
    asked = ["lora"] if shape.get("lora") else []
    if (shape.get("rope_scaling") or {"type": "default"})["type"] != "default":
        asked.append("rope_scaling")
    asked += [name for name in ("mlp_bias", "qk_norm", "attention_output_bias") if shape.get(name)]
    if asked:
        raise SystemExit(f"the PyTorch models here have no {', '.join(asked)}")
    return FAMILIES[shape["family"]](shape)


def initial_weights(model, shape, seed):
    """name -> tensor: normal matrices, biases of zero, norms of one; from `seed` and the kind of
    device, the model's, alone."""
    device = next(model.parameters()).device
    generator = torch.Generator(device).manual_seed(seed)
    weights = {}
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1:
            weights[name] = torch.empty(parameter.shape, device=device).normal_(
                0, shape["initializer_range"], generator=generator)
        else:
            weights[name] = torch.full(parameter.shape, 0.0 if name.endswith("bias") else 1.0,
                                       device=device)
    return weights
