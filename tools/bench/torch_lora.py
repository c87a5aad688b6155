"""LoRA by transformers, peft and bitsandbytes: the peer in qlora.py. Weights come from a Hugging Face
directory; every linear layer in blocks has an adapter, as ours by default."""

import torch
import torch.nn.functional as F
from torch import nn
from transformers import AutoModelForCausalLM, BitsAndBytesConfig
from peft import LoraConfig, get_peft_model

FORMS = {"none": None, "nf4": False, "nf4-nested": True}  # Whether scales are quantised, too.


class Lora(nn.Module):
    """The mean loss of tokens, as torch_models.py computes it."""

    def __init__(self, directory, form, rank, alpha, dropout):
        super().__init__()
        quantisation = None if FORMS[form] is None else BitsAndBytesConfig(
            load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.bfloat16,
            bnb_4bit_use_double_quant=FORMS[form])
        base = AutoModelForCausalLM.from_pretrained(
            directory, dtype=torch.bfloat16, quantization_config=quantisation, device_map="cpu")
        base.config.use_cache = False
        self.model = get_peft_model(base, LoraConfig(
            r=rank, lora_alpha=alpha, lora_dropout=dropout, target_modules="all-linear",
            task_type="CAUSAL_LM"))

    def forward(self, tokens, targets):
        logits = self.model(input_ids=tokens).logits
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())
