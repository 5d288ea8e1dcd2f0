"""The one quantisation config that is asked for."""

from types import SimpleNamespace


def fp8_w8a8_moe_quant_config(*, w1_scale, w2_scale, block_shape):
    """Keep the scales."""
    assert block_shape == [128, 128]
    return SimpleNamespace(scales=(w1_scale, w2_scale))
