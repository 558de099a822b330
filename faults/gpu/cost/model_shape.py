"""Shapes of transformer models: what there is to read and to compute. Counts and bytes, before any sharding."""

from __future__ import annotations

from dataclasses import dataclass

BF16, FP8 = 2.0, 1.0  # bytes per number


@dataclass(frozen=True)
class ModelShape:
    """A dense Llama-like transformer. `weight_bytes` and `kv_bytes` are per number."""

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int
    weight_bytes: float = BF16
    kv_bytes: float = BF16

    @property
    def layer_weights(self) -> int:
        """Numbers in one layer's dense products: q, k, v, o, and the gated MLP."""
        attention = 2 * self.heads + 2 * self.kv_heads
        return self.hidden * (attention * self.head_dim + 3 * self.intermediate)

    @property
    def head_weights(self) -> int:
        """Numbers in the language-model head."""
        return self.hidden * self.vocabulary

    @property
    def bytes_of_weights(self) -> float:
        """All weights; the embedding and the head stay in BF16 when the layers are quantised."""
        return self.layers * self.layer_weights * self.weight_bytes + 2 * self.head_weights * BF16

    @property
    def kv_bytes_per_token_and_layer(self) -> float:
        """Keys and values of one token in one layer."""
        return 2 * self.kv_heads * self.head_dim * self.kv_bytes

    @property
    def kv_bytes_per_token(self) -> float:
        """Keys and values of one token in all layers."""
        return self.layers * self.kv_bytes_per_token_and_layer


def llama_2_70b(weight_bytes: float = BF16, kv_bytes: float = BF16) -> ModelShape:
    """Llama 2 70B (config.json of meta-llama/Llama-2-70b-hf)."""
    return ModelShape("Llama-2-70B", 80, 8192, 64, 8, 128, 28672, 32000, weight_bytes, kv_bytes)


def llama_3_3_70b(weight_bytes: float = BF16, kv_bytes: float = BF16) -> ModelShape:
    """Llama 3.3 70B: Llama 2 70B with a larger vocabulary (config.json of meta-llama/Llama-3.3-70B-Instruct)."""
    return ModelShape("Llama-3.3-70B", 80, 8192, 64, 8, 128, 28672, 128256, weight_bytes, kv_bytes)


def llama_3_8b(weight_bytes: float = BF16, kv_bytes: float = BF16) -> ModelShape:
    """Llama 3 8B (config.json of meta-llama/Meta-Llama-3-8B)."""
    return ModelShape("Llama-3-8B", 32, 4096, 32, 8, 128, 14336, 128256, weight_bytes, kv_bytes)
