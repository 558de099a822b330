"""Text to tokens and back, by the `tokenizers` library; a small one is trained for the built-in weights."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

VOCABULARY = 512
SPECIAL = ("<pad>", "<s>", "</s>")
DEFAULT_CHAT = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}assistant: "
)


def train(corpus: str) -> Tokenizer:
    """A byte-level BPE of `VOCABULARY` tokens; the same corpus gives the same tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(SPECIAL),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator([corpus], trainer)
    return tokenizer


class TextCodec:
    """The tokenizer of one checkpoint folder, with its chat template."""

    def __init__(self, folder: Path) -> None:
        file = folder / "tokenizer.json"
        try:
            self._tokenizer = Tokenizer.from_file(str(file))
        except Exception as error:  # the library raises a bare Exception
            raise ValueError(f"{file}: {error}") from error
        settings_file = folder / "tokenizer_config.json"
        settings = json.loads(settings_file.read_text()) if settings_file.exists() else {}
        template = settings.get("chat_template") or DEFAULT_CHAT
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        self._chat = environment.from_string(template)
        self._words = {
            name: token["content"] if isinstance(token, dict) else token
            for name, token in settings.items()
            if name in ("bos_token", "eos_token") and token
        }

    @property
    def size(self) -> int:
        """How many tokens it knows."""
        return int(self._tokenizer.get_vocab_size())

    def encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text).ids)

    def decode(self, tokens: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(tokens), skip_special_tokens=True))

    def chat_prompt(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Tokens of a conversation, ready for the assistant's turn."""
        text = self._chat.render(messages=messages, add_generation_prompt=True, **self._words)
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)
