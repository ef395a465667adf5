"""A vision transformer in plain flax with the names of big_vision, vision_transformer or scenic, to compare with."""

import numpy as np


def parameters(rng, style, pool, width=16, depth=2, heads=2, hidden=40, patch=4, grid=3, classes=5, scan=False):
    """Random leaves; a leaf of zeros would hide mistakes."""
    old = {"attention": "MultiHeadDotProductAttention_1", "norm2": "LayerNorm_2", "mlp": "MlpBlock_3"}
    new = {"attention": "MultiHeadDotProductAttention_0", "norm2": "LayerNorm_1", "mlp": "MlpBlock_0"}
    names = old if style == "old" else new
    leaves = {}

    def add(name, *shape):
        leaves[name] = rng.normal(0, 0.5, shape).astype(np.float32)

    def norm(name):
        add(f"{name}/scale", width), add(f"{name}/bias", width)

    def dense(name, rows, columns):
        add(f"{name}/kernel", rows, columns), add(f"{name}/bias", columns)

    def attention(name):
        for part in ("query", "key", "value"):
            (
                add(f"{name}/{part}/kernel", width, heads, width // heads),
                add(f"{name}/{part}/bias", heads, width // heads),
            )
        add(f"{name}/out/kernel", heads, width // heads, width), add(f"{name}/out/bias", width)

    def mlp(name):
        dense(f"{name}/Dense_0", width, hidden), dense(f"{name}/Dense_1", hidden, width)

    add("embedding/kernel", patch, patch, 3, width), add("embedding/bias", width)
    tokens = grid**2 + (pool == "tok" and style != "big_vision")
    if "sincos2d" not in style:
        add("pos_embedding" if style == "big_vision" else "Transformer/posembed_input/pos_embedding", 1, tokens, width)
    if pool == "tok":
        add("cls", 1, 1, width)
    for i in range(depth):
        block = f"Transformer/encoderblock_{i}"
        norm(f"{block}/LayerNorm_0"), attention(f"{block}/{names['attention']}")
        norm(f"{block}/{names['norm2']}"), mlp(f"{block}/{names['mlp']}")
    norm("Transformer/encoder_norm")
    if pool == "map":
        add("MAPHead_0/probe", 1, 1, width), attention("MAPHead_0/MultiHeadDotProductAttention_0")
        norm("MAPHead_0/LayerNorm_0"), mlp("MAPHead_0/MlpBlock_0")
    dense("output_projection" if "scenic" in style else "head", width, classes)
    return scanned(leaves, depth) if scan else leaves


def scanned(leaves, depth):
    """The blocks in one array each, as a scan over them stores it."""
    first = "Transformer/encoderblock_0/"
    made = {name: leaf for name, leaf in leaves.items() if "encoderblock_" not in name}
    for name in leaves:
        if name.startswith(first):
            rest = name.removeprefix(first)
            made[f"Transformer/encoderblock/{rest}"] = np.stack(
                [leaves[f"Transformer/encoderblock_{i}/{rest}"] for i in range(depth)]
            )
    return made


def flax_logits(leaves, images, style, pool, depth=2, heads=2, hidden=40, patch=4, scan=False):
    """By flax's own layers, in float64; images (N, H, W, 3), normalized."""
    import jax

    jax.config.update("jax_enable_x64", True)
    from flax import linen as nn
    from flax.traverse_util import unflatten_dict
    from jax import numpy as jnp

    double = {"dtype": jnp.float64, "param_dtype": jnp.float64}

    class MLP(nn.Module):
        @nn.compact
        def __call__(self, x):
            width = x.shape[-1]
            x = nn.gelu(nn.Dense(hidden, name="Dense_0", **double)(x))
            return nn.Dense(width, name="Dense_1", **double)(x)

    class Block(nn.Module):
        names: tuple = ("MultiHeadDotProductAttention_0", "LayerNorm_1", "MlpBlock_0")

        @nn.compact
        def __call__(self, x, _=None):
            attention, norm2, mlp = self.names
            y = nn.LayerNorm(name="LayerNorm_0", **double)(x)
            x = x + nn.MultiHeadDotProductAttention(heads, name=attention, **double)(y, y)
            return x + MLP(name=mlp)(nn.LayerNorm(name=norm2, **double)(x)), None

    class Positions(nn.Module):
        @nn.compact
        def __call__(self, x):
            return x + self.param("pos_embedding", nn.initializers.zeros, (1, *x.shape[1:]))

    class Encoder(nn.Module):
        @nn.compact
        def __call__(self, x):
            if style in ("old", "new", "scenic"):
                x = Positions(name="posembed_input")(x)
            old = {"names": ("MultiHeadDotProductAttention_1", "LayerNorm_2", "MlpBlock_3")} if style == "old" else {}
            if scan:
                layers = nn.scan(Block, variable_axes={"params": 0}, split_rngs={"params": True}, length=depth)
                x, _ = layers(name="encoderblock")(x, None)
            else:
                for i in range(depth):
                    x, _ = Block(name=f"encoderblock_{i}", **old)(x)
            return nn.LayerNorm(name="encoder_norm", **double)(x)

    class MAPHead(nn.Module):
        @nn.compact
        def __call__(self, x):
            probe = self.param("probe", nn.initializers.zeros, (1, 1, x.shape[-1]))
            probe = jnp.tile(probe, (len(x), 1, 1))
            x = nn.MultiHeadDotProductAttention(heads, name="MultiHeadDotProductAttention_0", **double)(probe, x)
            return (x + MLP(name="MlpBlock_0")(nn.LayerNorm(name="LayerNorm_0", **double)(x)))[:, 0]

    class ViT(nn.Module):
        width: int
        classes: int

        @nn.compact
        def __call__(self, x):
            x = nn.Conv(self.width, (patch, patch), (patch, patch), padding="VALID", name="embedding", **double)(x)
            side, x = x.shape[1], x.reshape(len(x), -1, self.width)
            if style == "big_vision":  # before the class token is there
                x = x + self.param("pos_embedding", nn.initializers.zeros, (1, *x.shape[1:]))
            if "sincos2d" in style:
                x = x + sincos(side, self.width, is_scenic="scenic" in style)
            if pool == "tok":
                cls = self.param("cls", nn.initializers.zeros, (1, 1, self.width))
                x = jnp.concatenate([jnp.tile(cls, (len(x), 1, 1)), x], 1)
            x = Encoder(name="Transformer")(x)
            x = x[:, 0] if pool == "tok" else MAPHead(name="MAPHead_0")(x) if pool == "map" else x.mean(1)
            return nn.Dense(self.classes, name="output_projection" if "scenic" in style else "head", **double)(x)

    tree = unflatten_dict({tuple(name.split("/")): leaf.astype(np.float64) for name, leaf in leaves.items()})
    head = leaves["output_projection/kernel" if "scenic" in style else "head/kernel"]
    return np.asarray(ViT(*head.shape).apply({"params": tree}, jnp.asarray(images, jnp.float64)))


def sincos(side, width, is_scenic):
    """The fixed positions of 'Better plain ViT baselines', token by token; scenic divides by another number."""
    quarter = width // 4
    rates = [10_000 ** -(k / (quarter if is_scenic else quarter - 1)) for k in range(quarter)]
    rows = [
        [np.sin(x * r) for r in rates] + [np.cos(x * r) for r in rates]
        + [np.sin(y * r) for r in rates] + [np.cos(y * r) for r in rates]
        for y in range(side) for x in range(side)
    ]  # fmt: skip
    return np.array(rows)[None]
