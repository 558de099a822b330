"""Checkpoints: Hugging Face folders of Llama architecture. The built-in ones are written once from a seed.

The head's rows of the special tokens and of every token that is not plain ASCII are zero, so greedy decoding
never stops early and every token is valid text: an answer has exactly the length it was asked for, in any server
that loads the folder.
"""

from __future__ import annotations

import json
import os
import shutil
from importlib import resources
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from target.models.shape import LlamaShape, config_json, read_shape
from target.models.tokenizer import SPECIAL, VOCABULARY, TextCodec, train
from target.sequence import Rung

BUILT_IN: dict[Rung, LlamaShape] = {
    "full": LlamaShape(512, 8, 8, 4, 64, 1408, VOCABULARY, 512, end_tokens=(2,)),
    "light": LlamaShape(256, 4, 4, 2, 64, 704, VOCABULARY, 512, end_tokens=(2,)),
}
FORMAT = 1  # part of the folder's name: a change of what is written must not meet an old folder


def built_in(home: Path, rung: Rung, seed: int) -> Path:
    """The folder of a built-in checkpoint, written first if it is not there yet."""
    folder = home / "checkpoints" / f"{rung}-seed{seed}-v{FORMAT}"
    if not (folder / "config.json").exists():
        _write(folder, BUILT_IN[rung], seed)
    return folder


def _write(folder: Path, shape: LlamaShape, seed: int) -> None:
    """Write aside, then rename: a run that was killed half-way leaves no half checkpoint behind."""
    aside = folder.with_name(f"{folder.name}.{os.getpid()}")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    try:
        train((resources.files("target.models") / "corpus.txt").read_text()).save(
            str(aside / "tokenizer.json")
        )
        settings = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": shape.context}
        names = dict(zip(("pad_token", "bos_token", "eos_token"), SPECIAL, strict=True))
        (aside / "tokenizer_config.json").write_text(json.dumps(settings | names, indent=2) + "\n")
        weights = random_weights(shape, seed)
        codec = TextCodec(aside)
        for token in range(shape.vocabulary):
            text = codec.decode([token])
            if not text or not (text.isascii() and (text.isprintable() or text == "\n")):
                weights["lm_head.weight"][token] = 0.0
        save_file(weights, str(aside / "model.safetensors"), metadata={"format": "pt"})
        (aside / "config.json").write_text(config_json(shape))
        try:
            aside.rename(folder)
        except OSError:
            if not (folder / "config.json").exists():
                raise  # else another process was first, with the same bytes
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def weight_sizes(shape: LlamaShape) -> dict[str, tuple[int, ...]]:
    """Name (as in a Hugging Face folder) and size of every weight: (rows, columns), or (n,) for a norm."""
    q, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    sizes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (shape.vocabulary, shape.hidden)}
    for layer in range(shape.layers):
        prefix = f"model.layers.{layer}."
        sizes |= {
            f"{prefix}self_attn.q_proj.weight": (q, shape.hidden),
            f"{prefix}self_attn.k_proj.weight": (kv, shape.hidden),
            f"{prefix}self_attn.v_proj.weight": (kv, shape.hidden),
            f"{prefix}self_attn.o_proj.weight": (shape.hidden, q),
            f"{prefix}mlp.gate_proj.weight": (shape.mlp, shape.hidden),
            f"{prefix}mlp.up_proj.weight": (shape.mlp, shape.hidden),
            f"{prefix}mlp.down_proj.weight": (shape.hidden, shape.mlp),
            f"{prefix}input_layernorm.weight": (shape.hidden,),
            f"{prefix}post_attention_layernorm.weight": (shape.hidden,),
        }
    return sizes | {"model.norm.weight": (shape.hidden,), "lm_head.weight": (shape.vocabulary, shape.hidden)}


def random_weights(shape: LlamaShape, seed: int) -> dict[str, Tensor]:
    """Weights drawn from a seed, scaled so that activations neither fade nor grow; fp32."""
    generator = torch.Generator().manual_seed(seed)

    def draw(name: str, size: tuple[int, ...]) -> Tensor:
        if len(size) == 1:
            return torch.ones(size)
        scale = 1.0 if name == "model.embed_tokens.weight" else size[1] ** -0.5
        return torch.randn(size, generator=generator) * scale

    return {name: draw(name, size) for name, size in weight_sizes(shape).items()}


def load(folder: Path) -> tuple[LlamaShape, dict[str, Tensor]]:
    """Shape and fp32 weights of a folder; ValueError says what is missing or does not fit."""
    shape = read_shape(folder)
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise ValueError(f"{folder}: no *.safetensors file")
    weights: dict[str, Tensor] = {}
    for file in files:
        try:
            weights |= load_file(str(file))
        except Exception as error:  # safetensors raises its own kind for a file that is cut or garbage
            raise ValueError(f"{file}: {error}") from error
    if shape.tied:
        weights["lm_head.weight"] = weights.get("model.embed_tokens.weight", torch.empty(0)).clone()
    for name, size in weight_sizes(shape).items():
        if name not in weights:
            raise ValueError(f"{folder}: weight {name} is missing")
        if tuple(weights[name].shape) != size:
            raise ValueError(f"{folder}: {name} is {tuple(weights[name].shape)}; config.json makes it {size}")
    return shape, {name: weights[name].float() for name in weight_sizes(shape)}
