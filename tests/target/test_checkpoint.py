"""Checkpoints: the built-in ones and the folders that others bring."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from target.config import EngineConfig
from target.models import checkpoint
from target.models.assembly import assemble, folders, name_of, slabs
from target.models.checkpoint import BUILT_IN, built_in, load, random_weights, weight_sizes
from target.models.shape import LlamaShape, config_json, read_shape
from target.models.tokenizer import VOCABULARY, TextCodec
from target.settings import Settings
from tests.target.engine_builders import FakeCards, Headroom

TINY = LlamaShape(32, 2, 4, 2, 8, 48, VOCABULARY, 64, end_tokens=(2,))
TEXTS = ["def main() -> int:", "Überraschung: 3 €, 日本語 😀", "  two\n\tlines ", "<s> is text here? </s>"]


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """The built-in models, but small."""
    monkeypatch.setattr(checkpoint, "BUILT_IN", {"full": TINY, "light": replace(TINY, layers=1)})


@pytest.fixture(scope="module")
def _trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint, "BUILT_IN", {"full": TINY})
        yield built_in(tmp_path_factory.mktemp("tiny"), "full", 0)


@pytest.fixture
def folder(_trained: Path, tmp_path: Path) -> Path:
    """A tiny checkpoint that a test may spoil."""
    return Path(shutil.copytree(_trained, tmp_path / "llama-tiny"))


def hashes(folder: Path) -> dict[str, str]:
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(folder.iterdir())}


def reconfigure(folder: Path, **fields: object) -> None:
    config = json.loads((folder / "config.json").read_text()) | fields
    gone = [name for name, value in fields.items() if value is ...]
    for name in gone:
        del config[name]
    (folder / "config.json").write_text(json.dumps(config))


def reweigh(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    weights = {name: weight.clone() for name, weight in load_file(str(folder / "model.safetensors")).items()}
    change(weights)
    save_file(weights, str(folder / "model.safetensors"))


# --- the built-in ones


def test_a_checkpoint_is_written_once(tiny: None, tmp_path: Path) -> None:
    first = built_in(tmp_path, "full", 3)
    written = {file: file.stat().st_mtime_ns for file in first.iterdir()}
    assert built_in(tmp_path, "full", 3) == first
    assert {file: file.stat().st_mtime_ns for file in first.iterdir()} == written
    assert [child.name for child in first.parent.iterdir()] == ["full-seed3-v1"]


def test_the_same_seed_gives_the_same_bytes_and_another_seed_others(tiny: None, tmp_path: Path) -> None:
    one, two = built_in(tmp_path / "a", "full", 3), built_in(tmp_path / "b", "full", 3)
    assert hashes(one) == hashes(two)
    other = hashes(built_in(tmp_path / "a", "full", 4))
    assert {name for name, value in hashes(one).items() if other[name] != value} == {"model.safetensors"}


@pytest.mark.parametrize("fails_in", ["save_file", "config_json", "train"])
def test_a_writer_that_dies_half_way_leaves_nothing_and_the_next_one_succeeds(
    tiny: None, tmp_path: Path, fails_in: str
) -> None:
    def dies(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint, fails_in, dies)
        with pytest.raises(KeyboardInterrupt):
            built_in(tmp_path, "full", 0)
    assert list((tmp_path / "checkpoints").iterdir()) == []
    load(built_in(tmp_path, "full", 0))


def test_of_two_writers_at_once_the_second_finds_the_firsts_folder(
    tiny: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def meanwhile(shape: LlamaShape) -> str:
        monkeypatch.undo()
        monkeypatch.setattr(checkpoint, "BUILT_IN", {"full": TINY})
        monkeypatch.setattr("os.getpid", lambda: 1)
        built_in(tmp_path, "full", 0)
        return config_json(shape)

    monkeypatch.setattr(checkpoint, "config_json", meanwhile)
    load(built_in(tmp_path, "full", 0))
    assert [child.name for child in (tmp_path / "checkpoints").iterdir()] == ["full-seed0-v1"]


def test_the_head_only_gives_tokens_that_are_plain_text(folder: Path) -> None:
    _, weights = load(folder)
    codec = TextCodec(folder)
    live = [token for token in range(VOCABULARY) if weights["lm_head.weight"][token].any()]
    assert len(live) > 200
    assert all(codec.decode([token]).isascii() for token in live)
    assert not set(live) & {0, 1, 2}


@pytest.mark.parametrize("rung", ["full", "light"])
def test_the_built_in_shapes_fit_four_cards(rung: str) -> None:
    shape = BUILT_IN[rung]  # type: ignore[index]
    for cards in (1, 2, 4):
        shape.check_cards(cards)
    assert shape.vocabulary == VOCABULARY


def test_a_shape_survives_its_config_json(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(config_json(TINY))
    assert read_shape(tmp_path) == TINY


def test_weights_and_kv_of_the_built_in_full_model_on_one_of_four_cards() -> None:
    shape = BUILT_IN["full"]
    assert shape.kv_bytes_per_token(4) == 8 * 2 * 1 * 64 * 4 == 4096
    elements = sum(torch.Size(size).numel() for size in weight_sizes(shape).values())
    assert shape.weight_bytes(1) == 4 * elements


# --- the folders that others bring


def test_a_folder_can_be_loaded(folder: Path) -> None:
    shape, weights = load(folder)
    assert shape == TINY
    assert weights["model.embed_tokens.weight"].shape == (VOCABULARY, 32)
    assert {weight.dtype for weight in weights.values()} == {torch.float32}


def test_half_precision_weights_are_widened(folder: Path) -> None:
    reweigh(folder, lambda w: w.update({name: weight.bfloat16() for name, weight in w.items()}))
    assert {weight.dtype for weight in load(folder)[1].values()} == {torch.float32}


def test_tied_heads_are_the_embedding(folder: Path) -> None:
    reconfigure(folder, tie_word_embeddings=True)
    reweigh(folder, lambda w: w.pop("lm_head.weight"))
    _, weights = load(folder)
    assert torch.equal(weights["lm_head.weight"], weights["model.embed_tokens.weight"])


def test_weights_may_lie_in_several_files(folder: Path) -> None:
    weights = load_file(str(folder / "model.safetensors"))
    head = {"lm_head.weight": weights.pop("lm_head.weight")}
    save_file(weights, str(folder / "model-1.safetensors"))
    save_file(head, str(folder / "model-2.safetensors"))
    (folder / "model.safetensors").unlink()
    assert load(folder)[1].keys() == weight_sizes(TINY).keys()


def cut(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:1000])


Spoil = Callable[[Path], object]
MALFORMED: dict[str, tuple[Spoil, str]] = {
    "no config": (lambda f: (f / "config.json").unlink(), "config.json: No such file"),
    "no JSON": (lambda f: (f / "config.json").write_text("{"), "config.json: not JSON"),
    "no object": (lambda f: (f / "config.json").write_text("[]"), "config.json: not a JSON object"),
    "other architecture": (
        lambda f: reconfigure(f, architectures=["MistralForCausalLM"]),
        r"config.json: architectures is \['MistralForCausalLM'\]",
    ),
    "no architecture": (lambda f: reconfigure(f, architectures=...), "config.json: architectures is"),
    "unknown rope": (
        lambda f: reconfigure(f, rope_scaling={"rope_type": "llama3", "factor": 8}),
        "config.json: rope type 'llama3'",
    ),
    "old unknown rope": (
        lambda f: reconfigure(f, rope_scaling={"type": "linear", "factor": 8}),
        "config.json: rope type 'linear'",
    ),
    "biases": (lambda f: reconfigure(f, attention_bias=True), "config.json: biases"),
    "other activation": (lambda f: reconfigure(f, hidden_act="gelu"), "config.json: hidden_act 'gelu'"),
    "no heads": (
        lambda f: reconfigure(f, num_attention_heads=...),
        "config.json: num_attention_heads is missing",
    ),
    "no layers": (
        lambda f: reconfigure(f, num_hidden_layers=...),
        "config.json: num_hidden_layers is missing",
    ),
    "no weights": (lambda f: (f / "model.safetensors").unlink(), "llama-tiny: no .*safetensors file"),
    "cut weights": (cut, "model.safetensors: "),
    "garbage": (lambda f: (f / "model.safetensors").write_bytes(b"x" * 99), "model.safetensors: "),
    "wrong shape": (
        lambda f: reconfigure(f, intermediate_size=40),
        r"gate_proj.weight is \(48, 32\); config.json makes it \(40, 32\)",
    ),
    "missing layer": (
        lambda f: reconfigure(f, num_hidden_layers=3),
        "llama-tiny: weight model.layers.2.self_attn.q_proj.weight is missing",
    ),
    "missing head": (
        lambda f: reweigh(f, lambda w: w.pop("lm_head.weight")),
        "llama-tiny: weight lm_head.weight is missing",
    ),
}


@pytest.mark.parametrize(("spoil", "complaint"), MALFORMED.values(), ids=MALFORMED.keys())
def test_a_folder_that_can_not_be_used_is_refused_with_its_path(
    folder: Path, spoil: Spoil, complaint: str
) -> None:
    spoil(folder)
    with pytest.raises(ValueError, match=complaint):
        load(folder)


def test_a_folder_without_a_tokenizer_is_refused_with_its_path(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    with pytest.raises(ValueError, match=r"llama-tiny/tokenizer\.json"):
        TextCodec(folder)


def test_rope_parameters_are_read_where_either_generation_of_folders_keeps_them(folder: Path) -> None:
    reconfigure(folder, rope_theta=5000.0)
    assert read_shape(folder).rope_theta == 5000.0
    reconfigure(folder, rope_parameters={"rope_type": "default", "rope_theta": 7000.0})
    assert read_shape(folder).rope_theta == 7000.0


# --- the tokenizer


@pytest.mark.parametrize("text", TEXTS)
def test_text_comes_back_from_its_tokens(folder: Path, text: str) -> None:
    codec = TextCodec(folder)
    assert codec.decode(codec.encode(text)) == text.replace("<s>", "").replace("</s>", "")


def test_the_trained_tokenizer_has_as_many_tokens_as_the_models_have_rows(folder: Path) -> None:
    assert TextCodec(folder).size == VOCABULARY == 512


def test_a_conversation_becomes_a_prompt_by_the_folders_template_or_a_plain_one(folder: Path) -> None:
    talk = [{"role": "user", "content": "hi"}]
    codec = TextCodec(folder)
    assert codec.decode(codec.chat_prompt(talk)) == "user: hi\nassistant: "
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    template = "{{ eos_token }}{% for m in messages %}[{{ m['content'] }}]{% endfor %}"
    (folder / "tokenizer_config.json").write_text(json.dumps(settings | {"chat_template": template}))
    codec = TextCodec(folder)
    prompt = codec.chat_prompt(talk)
    assert prompt[0] == 2
    assert codec.decode(prompt) == "[hi]"


def test_a_template_can_not_reach_out_of_its_sandbox(folder: Path) -> None:
    template = "{{ messages.__class__.__mro__ }}"
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    with pytest.raises(Exception, match="unsafe"):
        TextCodec(folder).chat_prompt([])


# --- on cards

MIB = 2**20


def test_the_ladder_is_the_built_in_pair_or_the_folders_that_were_given(
    tiny: None, tmp_path: Path, folder: Path
) -> None:
    both = folders(Settings(), tmp_path)
    assert [path.name for path in both.values()] == ["full-seed0-v1", "light-seed0-v1"]
    assert folders(Settings(model=folder), tmp_path) == {"full": folder}
    assert folders(Settings(model=folder, light_model=folder), tmp_path) == {"full": folder, "light": folder}
    assert name_of("light", both["light"], Settings()) == "brownout-light"
    assert name_of("full", folder, Settings(model=folder)) == "llama-tiny"


def test_the_upper_rung_may_grow_as_far_as_the_low_memory_mark_beside_the_lower_ones_pool() -> None:
    device = FakeCards(room=Headroom(40 * MIB, 48 * MIB))
    config = EngineConfig(memory_low_fraction=0.25)
    # 28 MiB are above the mark; a slab is 256 tokens of 4 KiB, and of 2 KiB on the light rung.
    assert slabs("light", BUILT_IN, config, device) == (4, 4)
    assert slabs("full", BUILT_IN, config, device) == (2, 26)


def test_a_lower_rung_with_a_long_context_gets_the_slabs_for_it_and_they_are_set_aside() -> None:
    device = FakeCards(room=Headroom(40 * MIB, 48 * MIB))
    config = EngineConfig(memory_low_fraction=0.25)
    shapes = {rung: replace(shape, context=2048) for rung, shape in BUILT_IN.items()}
    assert slabs("light", shapes, config, device) == (8, 8)
    assert slabs("full", shapes, config, device) == (8, 24)


def test_cards_too_full_for_one_sequence_are_refused_in_numbers() -> None:
    device = FakeCards(room=Headroom(2 * MIB, 48 * MIB))
    with pytest.raises(ValueError, match=r"one sequence of 512 tokens needs 2\.0 MiB"):
        slabs("full", BUILT_IN, EngineConfig(memory_low_fraction=0.0), device)


def test_weights_are_reserved_before_the_cache_is_sized(folder: Path, tmp_path: Path) -> None:
    device = FakeCards(cards=2, room=Headroom(40 * MIB, 48 * MIB))
    ladder = assemble(Settings(model=folder), EngineConfig(), device, tmp_path)
    assert len(ladder.weights) == len(device.live) == 1
    assert list(ladder.rungs) == ["full"]
    assert ladder.rungs["full"].name == "llama-tiny"
    assert ladder.rungs["full"].context_most == 64
    assert ladder.end_tokens == {2}


def test_a_tokenizer_with_more_tokens_than_the_model_has_rows_is_refused(
    folder: Path, tmp_path: Path
) -> None:
    reconfigure(folder, vocab_size=500)
    small = replace(TINY, vocabulary=500)
    save_file(random_weights(small, 0), str(folder / "model.safetensors"))
    with pytest.raises(ValueError, match=r"llama-tiny: 500 tokens in config\.json, 512 in the tokenizer"):
        assemble(Settings(model=folder), EngineConfig(), FakeCards(), tmp_path)


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [({"heads": 6}, "6 attention heads"), ({"mlp": 50}, "50 MLP columns"), ({"kv_heads": 3}, "3 KV heads")],
    ids=["heads", "mlp", "kv heads"],
)
def test_a_model_that_can_not_be_cut_evenly_is_refused(fields: dict[str, int], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        replace(TINY, **fields).check_cards(4)  # type: ignore[arg-type]
