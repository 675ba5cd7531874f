"""A load format of vLLM: `--load-format poolbridge` takes the weights from a pool.

Keys of `--model-loader-extra-config`: `name` is the model's name in poolbridge (by
default, what `--model` says), `socket` the path of the service's socket, and `timeout`
how many seconds to wait for the service and for the name (60).
"""

import logging
import warnings

import torch
from vllm.config import ModelConfig
from vllm.config.load import LoadConfig
from vllm.model_executor.model_loader import BaseModelLoader, register_model_loader

import poolbridge


class PoolLoader(BaseModelLoader):
    def __init__(self, load_config: LoadConfig) -> None:
        super().__init__(load_config)
        extra = dict(load_config.model_loader_extra_config or {})
        self.name: str | None = extra.pop("name", None)
        self.socket: str | None = extra.pop("socket", None)
        self.timeout = float(extra.pop("timeout", 60))
        if extra:
            keys = "the keys are name, socket and timeout"
            raise ValueError(f"model-loader-extra-config has {sorted(extra)}; {keys}")

    def download_model(self, model_config: ModelConfig) -> None:
        """Do nothing: the model is in a pool."""

    def load_weights(self, model: torch.nn.Module, model_config: ModelConfig) -> None:
        name = self.name or model_config.model
        with poolbridge.connect(self.socket, wait=self.timeout) as client:
            with warnings.catch_warnings():  # the model copies what it is given
                warnings.simplefilter("ignore", poolbridge.ReadOnlyWarning)
                weights = client.get_dict(name, "torch", timeout=self.timeout)
            loaded = model.load_weights(iter(weights.items()))
            if torch.cuda.is_available():
                torch.cuda.synchronize()  # the copies are complete
        if loaded is not None:  # some models do not tell
            missing = {key for key, _ in model.named_parameters()} - set(loaded)
            if missing:  # scales of quantization may be: the model computes them
                log = logging.getLogger(__name__)
                log.warning("%s lacks %s", name, sorted(missing))


def register() -> None:
    """Make the load format known. vLLM calls this in each of its processes."""
    register_model_loader("poolbridge")(PoolLoader)
