"""Continue token ids with a model that poolbridge has: `answer.py FOLDER NAME`.

FOLDER has the model's config.json. The weights are used in place:
many of these programs need no more memory for them than one.
"""

import sys
import warnings

import torch
import transformers
from torch.nn.modules.module import register_module_parameter_registration_hook

import poolbridge

# this program does not write the weights
warnings.simplefilter("ignore", poolbridge.ReadOnlyWarning)


def on_meta(_: object, __: str, parameter: torch.Tensor) -> torch.nn.Parameter:
    return torch.nn.Parameter(parameter.to("meta"), requires_grad=False)


folder, name = sys.argv[1:]
config = transformers.AutoConfig.from_pretrained(folder)
# Parameters get no memory yet. Buffers do: the model computes those that no file has.
with register_module_parameter_registration_hook(on_meta):
    model = transformers.AutoModelForCausalLM.from_config(config).eval()

with poolbridge.connect(wait=60) as client:
    weights = client.get_dict(name, "torch", timeout=60)
result = model.load_state_dict(weights, strict=False, assign=True)
model.tie_weights()  # a file has tied weights only once
missing = [key for key, tensor in model.state_dict().items() if tensor.is_meta]
if missing or result.unexpected_keys:
    wrong = f"missing: {missing}, too many: {result.unexpected_keys}"
    sys.exit(f"the arrays of {name} are not those of the model of {folder}; {wrong}")
model.to(next(iter(weights.values())).device)  # the buffers

print("ready", flush=True)
for line in sys.stdin:  # such as "1 2 3"; a real program has a tokenizer
    tokens = torch.tensor([[int(word) for word in line.split()]], device=model.device)
    print(model.generate(tokens, max_new_tokens=8)[0].tolist(), flush=True)
