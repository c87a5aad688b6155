"""A mixture of experts by transformers: OLMoE, whose experts run in a loop or by torch's grouped_mm. For
step.py."""

import torch.nn.functional as F
from torch import nn
from transformers import OlmoeConfig, OlmoeForCausalLM


class Moe(nn.Module):
    """The mean loss of tokens, as torch_models.py computes it, without a balance loss."""

    def __init__(self, shape, experts):
        super().__init__()
        wanted = {"qk_norm_all_heads": True, "shared_expert_intermediate_size": 0, "dense_layers": [],
                  "scoring_func": "softmax"}
        for key, value in wanted.items():
            if shape[key] != value:
                raise SystemExit(f"the PyTorch mixture here is OLMoE, with {key} {value}")
        config = OlmoeConfig(
            vocab_size=shape["vocab_size"], hidden_size=shape["hidden_size"],
            intermediate_size=shape["moe_intermediate_size"], num_experts=shape["num_experts"],
            num_experts_per_tok=shape["num_experts_per_tok"], norm_topk_prob=shape["norm_topk_prob"],
            num_hidden_layers=shape["num_hidden_layers"],
            num_attention_heads=shape["num_attention_heads"],
            num_key_value_heads=shape["num_key_value_heads"], pad_token_id=None,
            max_position_embeddings=shape["max_position_embeddings"], rms_norm_eps=shape["rms_norm_eps"],
            tie_word_embeddings=shape["tie_word_embeddings"], rope_theta=shape["rope_theta"],
            initializer_range=shape["initializer_range"], use_cache=False, attn_implementation="sdpa",
            experts_implementation=experts)
        self.model = OlmoeForCausalLM(config)

    def blocks(self):
        return self.model.model.layers

    def save_initial(self, directory):
        self.model.save_pretrained(directory)

    def load(self, directory):
        self.model.load_state_dict(OlmoeForCausalLM.from_pretrained(directory).state_dict())

    def forward(self, tokens, targets):
        logits = self.model(input_ids=tokens).logits
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())
