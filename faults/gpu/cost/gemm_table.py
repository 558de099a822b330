"""Measured times of the dense products of one Llama-2-70B layer in BF16: ten token counts for each degree.

Milliseconds: the sum of the means of attn_pre_proj, attn_post_proj, mlp_up_proj and mlp_down_proj in
github.com/microsoft/vidur, data/profiling/compute/h100/meta-llama/Llama-2-70b-hf/mlp.csv, at commit 683364e9. Where
a row is there twice (4,096 tokens), the mean of the two. The points were chosen to show the step between 256 and 264
tokens, where a tile of 256 rows overflows: no smooth formula has it.
"""

from __future__ import annotations

from bisect import bisect_left

TOKENS = (1, 8, 48, 256, 264, 320, 384, 416, 1024, 4096)
MILLISECONDS = {
    1: (0.5934, 0.5758, 0.5975, 0.7199, 1.0192, 0.9237, 1.1860, 1.2957, 2.7617, 10.0134),
    2: (0.2950, 0.2958, 0.3031, 0.3914, 0.5219, 0.4882, 0.7111, 0.6937, 1.3362, 4.8580),
    4: (0.1580, 0.1675, 0.1635, 0.2149, 0.3464, 0.2759, 0.3227, 0.3961, 0.6900, 2.3883),
    8: (0.0880, 0.0874, 0.0927, 0.1208, 0.1843, 0.1763, 0.1717, 0.2005, 0.3321, 1.1757),
}


def measured_layer_s(degree: int, tokens: int) -> float:
    """Seconds by the table: straight lines between its points, and on along the last one."""
    times = MILLISECONDS[degree]
    right = min(max(bisect_left(TOKENS, tokens), 1), len(TOKENS) - 1)
    left = right - 1
    part = (tokens - TOKENS[left]) / (TOKENS[right] - TOKENS[left])
    return (times[left] + part * (times[right] - times[left])) / 1000
