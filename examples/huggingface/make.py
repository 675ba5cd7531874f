"""Make a model of random weights, in the form of a downloaded one: `make.py FOLDER`."""

import sys

import torch
import transformers

config = transformers.LlamaConfig(
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=2,
    num_attention_heads=4,
    vocab_size=256,
    tie_word_embeddings=True,
)
torch.manual_seed(1)
model = transformers.AutoModelForCausalLM.from_config(config).eval()
model.save_pretrained(sys.argv[1])  # config.json and model.safetensors
