"""Loads a model by the plug-in of examples/vllm: ``vllmplugin.py FOLDER``, with a model ``llama`` in a pool.

Without vLLM, a stand-in has the names that the plug-in uses, as vLLM 0.33.0 has them.
"""

from __future__ import annotations

import abc
import importlib
import io
import logging
import sys
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

import poolbridge


@dataclass
class LoadConfig:
    load_format: str = "auto"
    model_loader_extra_config: dict[str, Any] = field(default_factory=dict)


class BaseModelLoader(abc.ABC):
    def __init__(self, load_config: LoadConfig) -> None:
        self.load_config = load_config

    @abc.abstractmethod
    def download_model(self, model_config: Any) -> None: ...

    @abc.abstractmethod
    def load_weights(self, model: torch.nn.Module, model_config: Any) -> None: ...


LOADERS: dict[str, type[BaseModelLoader]] = {}


def register_model_loader(load_format: str) -> Callable[[type[BaseModelLoader]], type[BaseModelLoader]]:
    def register(loader: type[BaseModelLoader]) -> type[BaseModelLoader]:
        assert issubclass(loader, BaseModelLoader)
        LOADERS[load_format] = loader
        return loader

    return register


def get_model_loader(load_config: LoadConfig) -> BaseModelLoader:
    return LOADERS[load_config.load_format](load_config)


STAND_IN: dict[str, dict[str, Any]] = {
    "vllm": {},
    "vllm.config": {"ModelConfig": SimpleNamespace},
    "vllm.config.load": {"LoadConfig": LoadConfig},
    "vllm.model_executor": {},
    "vllm.model_executor.model_loader": {
        "BaseModelLoader": BaseModelLoader,
        "get_model_loader": get_model_loader,
        "register_model_loader": register_model_loader,
    },
}


class Model(torch.nn.Module):  # type: ignore[misc] # not installed everywhere
    """Puts weights that a file has one by one into one parameter, as models of vLLM do."""

    def __init__(self) -> None:
        super().__init__()
        self.kv_proj = torch.nn.Parameter(torch.zeros(4, 3))
        self.norm = torch.nn.Parameter(torch.zeros(3))

    def load_weights(self, weights: Iterator[tuple[str, torch.Tensor]]) -> set[str]:
        loaded = set()
        for name, weight in weights:
            if name == "norm":
                self.norm.data.copy_(weight)
            else:
                self.kv_proj.data["kv".index(name[0]) * 2 :][:2].copy_(weight)
            loaded.add("norm" if name == "norm" else "kv_proj")
        return loaded


def main(folder: Path) -> None:
    try:
        importlib.import_module("vllm")
    except ModuleNotFoundError:
        for name, members in STAND_IN.items():
            sys.modules[name] = ModuleType(name)
            vars(sys.modules[name]).update(members)
    vllm: Any = importlib.import_module("vllm.model_executor.model_loader")
    config: Any = importlib.import_module("vllm.config.load").LoadConfig

    # as vLLM finds what `pip install FOLDER` installed
    points = tomllib.loads((folder / "pyproject.toml").read_text())["project"]["entry-points"]
    module, _, function = points["vllm.general_plugins"]["poolbridge"].partition(":")
    sys.path.insert(0, str(folder))
    getattr(importlib.import_module(module), function)()

    described = SimpleNamespace(model="llama", quantization=None)
    model = Model()
    weights = {"k_proj": torch.rand(2, 3), "v_proj": torch.rand(2, 3), "norm": torch.rand(3)}
    with poolbridge.connect() as client:
        client.create_pool("models", kind="host", max_bytes="16MiB")
        client.put(weights, "llama", keep=True)
        client.put({"norm": weights["norm"]}, "other", keep=True)
    loader = vllm.get_model_loader(config(load_format="poolbridge"))
    loader.download_model(described)
    loader.load_weights(model, described)
    assert torch.equal(model.kv_proj, torch.cat([weights["k_proj"], weights["v_proj"]]))
    assert torch.equal(model.norm, weights["norm"])

    said = io.StringIO()
    logging.getLogger(module).addHandler(logging.StreamHandler(said))
    loader = vllm.get_model_loader(
        config(load_format="poolbridge", model_loader_extra_config={"name": "other", "timeout": 10})
    )
    loader.load_weights(model, described)
    assert said.getvalue() == "other lacks ['kv_proj']\n"
    try:
        vllm.get_model_loader(config(load_format="poolbridge", model_loader_extra_config={"pool": "models"}))
    except ValueError as error:
        assert "'pool'" in str(error)  # noqa: PT017 - a program without pytest
        print("loaded")


main(Path(sys.argv[1]))
