"""The shape of a Llama-architecture model, and how it is cut over cards."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class LlamaShape:
    """What `config.json` says; sizes are counts of elements."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    mlp: int
    vocabulary: int
    context: int
    rope_theta: float = 10_000.0
    norm_epsilon: float = 1e-5
    tied: bool = False
    end_tokens: tuple[int, ...] = ()

    def kv_bytes_per_token(self, cards: int) -> int:
        """Bytes of KV (fp32) that one token takes on one card; fewer KV heads than cards are replicated."""
        return self.layers * 2 * max(1, self.kv_heads // cards) * self.head_dim * 4

    def weight_bytes(self, cards: int) -> int:
        """Bytes of weights (fp32) on one card; embedding, head and norms are on each."""
        attention = self.hidden * self.head_dim * (2 * self.heads + 2 * max(self.kv_heads, cards))
        matrices = self.layers * (attention + 3 * self.hidden * self.mlp) // cards
        ends = self.vocabulary * self.hidden * (1 if self.tied else 2)
        return 4 * (matrices + ends + (2 * self.layers + 1) * self.hidden)

    def check_cards(self, cards: int) -> None:
        """ValueError if it can't be cut evenly over so many cards."""
        for what, count in (("attention heads", self.heads), ("MLP columns", self.mlp)):
            if count % cards:
                raise ValueError(f"{count} {what} can't be shared by {cards} cards")
        if self.kv_heads % cards and cards % self.kv_heads:
            raise ValueError(
                f"{self.kv_heads} KV heads can be neither shared by nor replicated over {cards} cards"
            )


def read_shape(folder: Path) -> LlamaShape:
    """From a Hugging Face folder; ValueError where it is not a Llama that we compute faithfully."""
    file = folder / "config.json"
    try:
        said: Any = json.loads(file.read_text())
    except OSError as error:
        raise ValueError(f"{file}: {error.strerror}; a Hugging Face folder has config.json") from error
    except ValueError as error:
        raise ValueError(f"{file}: not JSON: {error}") from error
    if not isinstance(said, dict):
        raise ValueError(f"{file}: not a JSON object")
    config: dict[str, Any] = said
    architectures = config.get("architectures") or []
    if "LlamaForCausalLM" not in architectures:
        raise ValueError(f"{file}: architectures is {architectures}; only LlamaForCausalLM is known")
    rope: dict[str, Any] = config.get("rope_parameters") or config.get("rope_scaling") or {}
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind != "default":
        raise ValueError(f"{file}: rope type {kind!r}; only default is known")
    if config.get("attention_bias") or config.get("mlp_bias"):
        raise ValueError(f"{file}: biases are not supported")
    if config.get("hidden_act", "silu") != "silu":
        raise ValueError(f"{file}: hidden_act {config['hidden_act']!r}; only silu is known")
    ends = config.get("eos_token_id")
    try:
        heads = config["num_attention_heads"]
        return LlamaShape(
            hidden=config["hidden_size"],
            layers=config["num_hidden_layers"],
            heads=heads,
            kv_heads=config.get("num_key_value_heads") or heads,
            head_dim=config.get("head_dim") or config["hidden_size"] // heads,
            mlp=config["intermediate_size"],
            vocabulary=config["vocab_size"],
            context=config["max_position_embeddings"],
            rope_theta=float(rope.get("rope_theta", config.get("rope_theta", 10_000.0))),
            norm_epsilon=float(config.get("rms_norm_eps", 1e-5)),
            tied=bool(config.get("tie_word_embeddings", False)),
            end_tokens=tuple(ends) if isinstance(ends, list) else () if ends is None else (ends,),
        )
    except KeyError as error:
        raise ValueError(f"{file}: {error.args[0]} is missing") from error


def config_json(shape: LlamaShape) -> str:
    """The `config.json` of a shape, as other servers read it."""
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": shape.hidden,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "intermediate_size": shape.mlp,
        "vocab_size": shape.vocabulary,
        "max_position_embeddings": shape.context,
        "rope_theta": shape.rope_theta,
        "rms_norm_eps": shape.norm_epsilon,
        "tie_word_embeddings": shape.tied,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "torch_dtype": "float32",
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    return json.dumps(config, indent=2) + "\n"
