"""Layer shapes by name, from a Hugging Face config.json, or from a TOML file of one's own."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from importlib.resources import files
from pathlib import Path

from ..errors import CorruptFile, InvalidInput, UnknownName
from ._fields import Fields
from ._huggingface import shape_from_config
from .problem import (
    ACTIVATION_FORMATS,
    PAIRS,
    SPELLINGS,
    WEIGHT_FORMATS,
    Activation,
    MoEShape,
)

MOST_FILE_BYTES = 4 << 20
_EXPECTED = "a Hugging Face config.json of an MoE model, or a TOML with the keys of models.toml"
_KEYS = (
    *("experts", "top_k", "hidden", "intermediate", "shared_experts", "shared_intermediate"),
    *("layers", "dense_layers", "weights", "activations", "also", "activation"),
    *("swiglu_alpha", "swiglu_limit", "swiglu_up_shift", "biases", "weight_on_input"),
    *("routed_scaling_factor", "padded_intermediate", "pads_intermediate_to", "unsure"),
)


def model_names() -> tuple[str, ...]:
    """List the presets, in alphabetical order."""
    return tuple(sorted(_presets()))


def load_model(name: str) -> MoEShape:
    """Return the layer of a preset, a config.json (or the folder that holds it), or a TOML file.

    Raises:
        UnknownName: neither a preset nor a file; near names are in the message.
        CorruptFile: a file that describes no MoE layer.
        InvalidInput: a file whose values no layer can have.
    """
    presets = _presets()
    if name.lower() in presets:
        return shape_from_table(name.lower(), presets[name.lower()], "models.toml")
    path = Path(name)
    try:
        path = path / "config.json" if path.is_dir() else path
        found = path.is_file()
    except (OSError, ValueError) as error:
        raise InvalidInput(f"model is {name!r:.80}: {error}") from error
    if not found:
        advice = "or pass a config.json or a TOML file"
        if path.suffix in (".json", ".toml") or len(path.parts) > 1:
            advice = "there is no such file"
        raise UnknownName("model", name, presets, advice)
    return _load_file(path)


def with_formats(shape: MoEShape, weights: str | None, activations: str | None) -> MoEShape:
    """Return the shape with other formats, as --dtype and --activations name them.

    Raises:
        InvalidInput: no checkpoint has such weights, or no kernel multiplies the pair.
    """
    has = (shape.weights, *(name for name in shape.also if name != shape.weights))
    chosen = SPELLINGS.get(weights, weights) if weights else shape.weights
    if chosen not in has:
        raise InvalidInput(
            f"dtype is {weights!r}: {shape.model!r} has {' and '.join(map(_short, has))} weights"
        )
    kept = shape.activations if chosen == shape.weights else PAIRS[chosen][0]
    paired = SPELLINGS.get(activations, activations) if activations else kept
    if paired not in PAIRS[chosen]:
        raise InvalidInput(
            f"activations is {activations!r}: with {_short(chosen)} weights it must be "
            f"{' or '.join(map(_short, PAIRS[chosen]))}"
        )
    also = tuple(name for name in has if name != chosen)
    return replace(shape, weights=chosen, activations=paired, also=also)


def shape_from_table(model: str, table: Mapping[str, object], path: object) -> MoEShape:
    """Make a shape from a table with the keys of models.toml.

    Raises:
        CorruptFile: a key that is unknown, missing, or of the wrong type.
    """
    fields = Fields(table, path, _EXPECTED)
    fields.refuse_unknown(_KEYS)
    weights = _format(fields, "weights", "bf16", WEIGHT_FORMATS)
    default = PAIRS[weights][0]
    activation = Activation(
        kind=fields.text("activation", "swiglu"),
        alpha=fields.number("swiglu_alpha", 1.0),
        limit=fields.number("swiglu_limit", 0.0) or None,
        up_shift=fields.number("swiglu_up_shift", 0.0),
    )
    return MoEShape(
        model=model,
        experts=fields.count("experts"),
        top_k=fields.count("top_k"),
        hidden=fields.count("hidden"),
        intermediate=fields.count("intermediate"),
        shared_experts=fields.count("shared_experts", 0),
        shared_intermediate=fields.count("shared_intermediate", 0),
        layers=fields.count("layers", 1) - fields.count("dense_layers", 0),
        weights=weights,
        activations=_format(fields, "activations", default, ACTIVATION_FORMATS),
        also=fields.words("also", WEIGHT_FORMATS),
        activation=activation,
        biases=fields.claim("biases", False),
        weight_on_input=fields.claim("weight_on_input", False),
        routed_scaling_factor=fields.number("routed_scaling_factor", 1.0),
        padded_intermediate=fields.count("padded_intermediate", 0),
    )


def _format(fields: Fields, key: str, default: str, known: Mapping[str, object]) -> str:
    word = fields.text(key, default)
    name = SPELLINGS.get(word, word)
    if name not in known:
        raise fields.wrong(f"{key} is {word!r}: must be one of {', '.join(known)}")
    return name


def _short(name: str) -> str:
    return next((short for short, full in SPELLINGS.items() if full == name), name)


@cache
def _presets() -> dict[str, Mapping[str, object]]:
    return tomllib.loads(files(__package__).joinpath("models.toml").read_text(encoding="utf-8"))


def _load_file(path: Path) -> MoEShape:
    text = _read(path)
    try:
        if path.suffix == ".toml":
            table: object = tomllib.loads(text)
        else:
            table = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CorruptFile(path, f"{error}", _EXPECTED) from error
    if not isinstance(table, dict):
        raise CorruptFile(path, f"it holds a {type(table).__name__}, not an object", _EXPECTED)
    if path.suffix != ".toml":
        return shape_from_config(table, path)
    # A file may hold one layer, or, like models.toml, one table a model.
    tables = [(name, value) for name, value in table.items() if isinstance(value, dict)]
    if len(tables) == 1 and len(table) == 1:
        return shape_from_table(str(tables[0][0]), tables[0][1], path)
    if tables:
        raise CorruptFile(path, f"it holds {len(tables)} tables", "one model a file")
    return shape_from_table(path.stem, table, path)


def _read(path: Path) -> str:
    try:
        size = path.stat().st_size
        if size > MOST_FILE_BYTES:
            raise CorruptFile(path, f"{size} bytes, over {MOST_FILE_BYTES >> 20} MiB", _EXPECTED)
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CorruptFile(path, str(error), _EXPECTED) from error
